"""Sheets worked out by hand, by section of the requirements: (sheet, arguments, what is printed)."""

OUTPUT = [
    ("", [], ""),
    ("# nothing\n\n  \t\n", [], ""),
    ("A1 = 42", [], "A1\t42\n"),
    ("  A1=7  \n\tB2\t:\t two  words \t\n", [], "A1\t7\nB2\ttwo  words\n"),
    ("A1 : a = b : c\nB1 :\nC1 : # no\n  # B1 : x\n", [], "A1\ta = b : c\nB1\t\nC1\t# no\n"),
    ("AA1=1\nZ1=2\nB10=3\nB9=4\nAZ1=5\nBA1=6\nA999=7\nZZ2=8\n", [],
     "A999\t7\nB9\t4\nB10\t3\nZ1\t2\nAA1\t1\nAZ1\t5\nBA1\t6\nZZ2\t8\n"),
    ("A1 : größer, 大きい\u2028 \u00a0\n", [], "A1\tgrößer, 大きい\u2028 \u00a0\n"),
    ("B1=1\nA1=2\nC3:x\n", ["B1", "A1", "Q9", "B1", "C3"], "B1\t1\nA1\t2\nQ9\t\nB1\t1\nC3\tx\n"),
    ("A1 = 007\n", ["A1"], "A1\t7\n"),
]  # fmt: skip

ARITHMETIC = [
    ("A1 = 6 * 7", ["A1"], "A1\t42\n"),
    ("A1=1+2*3-4/2\nA2=(1+2)*(3-4)/2\nA3=100-10-1\nA4=100/10/2\nA5=7-(2-(3-4))", [],
     "A1\t5\nA2\t-1\nA3\t89\nA4\t5\nA5\t4\n"),
    ("A1=7/2\nA2=-7/2\nA3=7/-2\nA4=-7/-2\nA5=0/-5\nA6=-1/2\nA7=6/-3", [],
     "A1\t3\nA2\t-3\nA3\t-3\nA4\t3\nA5\t0\nA6\t0\nA7\t-2\n"),
    ("A1 = 2 * --3\nA2 = - - -( 4 )\nA3=5--5\nA4=-2*-3\nA5\t=\t1\t+\t( 2 )", [],
     "A1\t6\nA2\t-4\nA3\t10\nA4\t6\nA5\t3\n"),
    (f"A1 = {'9' * 60} * {'9' * 60}\nA2 = {'1' + '0' * 50} / 3 * -1", [],
     f"A1\t{(10**60 - 1) ** 2}\nA2\t-{'3' * 50}\n"),
    (f"A1 = {'(' * 40}5{')' * 40}", [], "A1\t5\n"),
]  # fmt: skip

REFERENCES = [
    ("B1 = A1 * 2\nA1 = C1 + 1\nC1 = 4", [], "A1\t5\nB1\t10\nC1\t4\n"),
    ("A1 = Z99 - 3\nA2 = Z99", [], "A1\t-3\nA2\t0\n"),
    ("A1 = AA1+ZZ999\nAA1 = 5\nZZ999 = -6", ["A1"], "A1\t-1\n"),
]

RANGES = [
    ("A1=1\nA2=2\nB1=30\nB2:no\nD1=SUM(A1:B2)\nD2=MIN(A1:B2)\nD3=MAX(A1:B2)\nD4=COUNT(A1:B2)", [],
     "A1\t1\nA2\t2\nB1\t30\nB2\tno\nD1\t33\nD2\t1\nD3\t30\nD4\t3\n"),
    ("A1=1\nB3=5\nC2=-9\nD1=SUM(C3:A1)\nD2=SUM(A3:C1)\nD3=SUM( C1 : A3 )\nD4 = MAX ( B3 : B3 )",
     ["D1", "D2", "D3", "D4"], "D1\t-3\nD2\t-3\nD3\t-3\nD4\t5\n"),
    ("A1=SUM(B1:C9)\nA2=MIN(B1:C9)\nA3=MAX(B1:C9)\nA4=COUNT(B1:C9)\nB5 : 12", [],
     "A1\t0\nA2\t0\nA3\t0\nA4\t0\nB5\t12\n"),
    ("B1=-5\nB2=-7\nA3=2*MAX(B1:B9)-MIN(B1:B9)*-COUNT(B1:B9)", ["A3"], "A3\t-24\n"),
    ("A2=1\nA10=2\nA100=3\nB5=4\nC1=SUM(A2:A10)\nC2=SUM(A3:B100)\nC3=COUNT(A1:B999)", ["C1", "C2", "C3"],
     "C1\t3\nC2\t9\nC3\t4\n"),
    ("Y1=1\nZ1=2\nAA1=3\nAB1=4\nA2=SUM(Z1:AA1)\nA3=SUM(AB1:Y1)", ["A2", "A3"], "A2\t5\nA3\t10\n"),
]  # fmt: skip

VALUE_ERRORS = [
    ("A1 = 1/0\nA2 = A1 + 1\nA3 = 5", [], "A1\t!ZERO\nA2\t!ZERO\nA3\t5\n"),
    ("A1 : x\nA2 = A1\nA3 = 1 + A1\nA4 = -A1\nA5 = SUM(A1:A1)\nA6 = A2 * 0", [],
     "A1\tx\nA2\t!TEXT\nA3\t!TEXT\nA4\t!TEXT\nA5\t0\nA6\t!TEXT\n"),
    ("A1 = A1\nB1 = C1\nC1 = B1 + 1\nD1 = C1\nE1 = 1 / 0 + D1\nF1 : t\nG1 = F1 + E1", [],
     "A1\t!CYCLE\nB1\t!CYCLE\nC1\t!CYCLE\nD1\t!CYCLE\nE1\t!CYCLE\nF1\tt\nG1\t!CYCLE\n"),
    ("A1 = SUM(A1:B2)\nB1 = 2\nC1 = COUNT(A1:A1)\nD1 = COUNT(E1:E9) + SUM(D2:D9)\nD5 = D1", [],
     "A1\t!CYCLE\nB1\t2\nC1\t!CYCLE\nD1\t!CYCLE\nD5\t!CYCLE\n"),
    ("A1 : t\nA2 = 1/0 + A1\nA3 = A1 + 1/0\nA4 = A1 / 0\nA5 = (1/0) * (A1)\nA6 = 0 / (1 - 1) - A1", [],
     "A1\tt\nA2\t!ZERO\nA3\t!TEXT\nA4\t!TEXT\nA5\t!ZERO\nA6\t!ZERO\n"),
    ("A2 = 1/0\nB1 = Z1\nZ1 = Y1\nY1 : t\nC1 = SUM(A1:B2)\nC2 = SUM(B2:A1)\nC3 = B1 + A2\n"
     "C4=MAX(B1:B1)+A2", [],
     "A2\t!ZERO\nB1\t!TEXT\nC1\t!ZERO\nC2\t!ZERO\nC3\t!TEXT\nC4\t!TEXT\nY1\tt\nZ1\t!TEXT\n"),
    ("A1 : !CYCLE\nB1 = A1\nC1 = COUNT(A1:B1)\nD1 = COUNT(A1:A1)", [],
     "A1\t!CYCLE\nB1\t!TEXT\nC1\t!TEXT\nD1\t0\n"),
    ("A1 = B1 * 0\nB1 = 1 / (C1 - C1)\nC1 = 3", ["C1", "A1"], "C1\t3\nA1\t!ZERO\n"),
    ("A1 = MIN(B1:B3)\nB1 = 1\nB2 = 2/0\nB3 : t", ["A1"], "A1\t!ZERO\n"),
]  # fmt: skip

# (sheet, arguments, number of the line or None)
SHEET_ERRORS = [
    ("A1 = 1\nwhat\n", [], 2),
    ("A1 = 1\n# A1 = 2\n\nA1 = 3\nbad", [], 4),
    ("A1 : 1\nA1 : 1", [], 2),
    *[(f"B1 = 1\nA1 = {text}\nnonsense", [], 2) for text in (
        "", "1 +", "* 2", "(1", "1)", "()", "1 2", "A1 A2", "2A1", "a1", "A0", "A01", "AAA1", "A1000", "A",
        "1.5", "+1", "2 + + 3", "1 ** 2", "7 // 2", "7 % 2", "SUM(A1)", "SUM(A1:B2", "SUM(1:2)", "SUM()",
        "AVG(A1:A2)", "A2:A3", "sum(A2:A3)", "SUM A2:A3", "SUM(A2:A3,B1:B2)", "MAX((A2:A3))", "SUM", "B 1",
        "1\r", "1\u00a0", "\u0663", "\u00b2", "1_000", "0x10", "SUM(A2:A3/1)", "-", "1 = 1", "\"x\"",
    )],
    ("A1000 = 1", [], 1),
    ("A0 : x", [], 1),
    ("a1 = 1", [], 1),
    ("AAA1 : x", [], 1),
    ("A01 = 1", [], 1),
    ("= 1", [], 1),
    (": x", [], 1),
    ("A 1 = 1", [], 1),
    ("A1 1", [], 1),
    ("A1", [], 1),
    ("A1 = 1 # one", [], 1),
    ("\ufeffA1 = 1", [], 1),
    ("A1 = 1", ["a1"], None),
    ("A1 = 1", ["A1", "A0"], None),
    ("A1 = 1", ["A1:A2"], None),
    ("A1 = 1", [""], None),
]  # fmt: skip

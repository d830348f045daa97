"""Working out cells: each once, those that it needs first, without recursion from cell to cell."""

from bisect import bisect_left, bisect_right

CYCLE, TEXT, ZERO = "!CYCLE", "!TEXT", "!ZERO"


class ValueFault(Exception):
    """An expression cannot be worked out; the argument is the value that says so."""


class Sheet:
    """The cells of a sheet and their values: numbers, or texts for texts and errors."""

    def __init__(self, cells):
        self.cells = cells
        self.values = {key: cell for key, cell in cells.items() if isinstance(cell, str)}
        self.columns = {}
        for column, row in sorted(cells):
            self.columns.setdefault(column, []).append(row)
        for keys in self.in_order():
            if len(keys) > 1 or keys[0] in self.needs(cells[keys[0]]):
                self.values.update(dict.fromkeys(keys, CYCLE))
            else:
                self.values[keys[0]] = self.value(keys[0])

    def within(self, first, second):
        """Return the keys of the set cells in a rectangle, in order."""
        (left, right), (top, bottom) = sorted((first[0], second[0])), sorted((first[1], second[1]))
        found = []
        for column in range(left, right + 1):
            rows = self.columns.get(column, [])
            found += [(column, row) for row in rows[bisect_left(rows, top) : bisect_right(rows, bottom)]]
        return found

    def needs(self, tree):
        """Return the keys of the set cells that an expression names."""
        keys, trees = [], [tree]
        while trees:
            kind, *rest = trees.pop()
            if kind == "cell":
                keys += [rest[0]] if rest[0] in self.cells else []
            elif kind == "negate":
                trees.append(rest[0])
            elif kind in {"+", "-", "*", "/"}:
                trees += rest
            elif kind != "number":
                keys += self.within(*rest)
        return keys

    def in_order(self):
        """Yield lists of cells that need each other (mostly of one), after all that they need (Tarjan)."""
        number, low, path, on_path = {}, {}, [], set()
        for root in self.cells:
            if root in number or root in self.values:
                continue
            calls = [(root, None)]
            while calls:
                key, ahead = calls.pop()
                if ahead is None:
                    number[key] = low[key] = len(number)
                    path.append(key)
                    on_path.add(key)
                    ahead = iter(self.needs(self.cells[key]))
                for other in ahead:
                    if other in on_path:
                        low[key] = min(low[key], number[other])
                    elif other not in number and not isinstance(self.cells[other], str):
                        calls += [(key, ahead), (other, None)]
                        break
                else:
                    if calls:
                        low[calls[-1][0]] = min(low[calls[-1][0]], low[key])
                    if low[key] == number[key]:
                        at = path.index(key) if path[-1] != key else len(path) - 1
                        keys, path[at:] = path[at:], []
                        on_path.difference_update(keys)
                        yield keys

    def value(self, key):
        """Return the value of a cell whose needs are worked out."""
        tree = self.cells[key]
        if any(self.values[other] == CYCLE and self.is_fault(other) for other in self.needs(tree)):
            return CYCLE
        try:
            return self.number(tree)
        except ValueFault as fault:
            return fault.args[0]

    def is_fault(self, key):
        """Whether a cell's value is an error, rather than a text that reads like one."""
        return isinstance(self.values[key], str) and not isinstance(self.cells[key], str)

    def cell(self, key):
        """Return the number in a cell."""
        value = self.values.get(key, 0)
        if isinstance(value, str):
            raise ValueFault(value if self.is_fault(key) else TEXT)
        return value

    def number(self, tree):
        """Return what an expression comes to."""
        kind, *rest = tree
        if kind == "number":
            return rest[0]
        if kind == "cell":
            return self.cell(rest[0])
        if kind == "negate":
            return -self.number(rest[0])
        if kind in {"+", "-", "*", "/"}:
            return calculate(kind, self.number(rest[0]), self.number(rest[1]))
        numbers = [self.cell(key) for key in self.within(*rest) if not isinstance(self.cells[key], str)]
        if kind == "COUNT":
            return len(numbers)
        return {"SUM": sum, "MIN": min, "MAX": max}[kind](numbers or [0])


def calculate(operator, left, right):
    """Return the result of an operator."""
    if operator == "+":
        return left + right
    if operator == "-":
        return left - right
    if operator == "*":
        return left * right
    if right == 0:
        raise ValueFault(ZERO)
    quotient = abs(left) // abs(right)
    return quotient if (left < 0) == (right < 0) else -quotient

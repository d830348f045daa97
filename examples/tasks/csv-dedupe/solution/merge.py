"""Merge the contacts: rows in order of date, later values over earlier ones, empty values ignored."""

import csv

with open("/app/contacts.csv", encoding="utf-8", newline="") as file:
    reader = csv.DictReader(file)
    columns = reader.fieldnames
    contacts = [{key: value.strip() for key, value in row.items()} for row in reader]

people = {}
for row in sorted(contacts, key=lambda row: row["updated"]):  # a stable sort keeps the order of the file
    row["email"] = row["email"].lower()
    if row["email"]:
        person = people.setdefault(row["email"], dict.fromkeys(columns, ""))
        person.update({key: value for key, value in row.items() if value})

with open("/app/clean.csv", "w", encoding="utf-8", newline="") as file:
    writer = csv.DictWriter(file, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows(people[email] for email in sorted(people))

#!/usr/bin/env python3
"""Writes ours.csv and bank.csv: one quarter of a shop's books and of its bank statement. Always the same bytes.

The differences are put in on purpose, and a test counts them:
  23 references that the bank does not have, 17 that our books do not have, 32 with another amount.
"""

import csv
import datetime
import pathlib
import random

SEED, ENTRIES = 20260331, 4900
MISSING_AT_BANK, MISSING_IN_BOOKS, OTHER_AMOUNT = 23, 17, 32
FIRST, LAST = datetime.date(2026, 1, 2), datetime.date(2026, 3, 31)

rng = random.Random(SEED)
days = [FIRST + datetime.timedelta(n) for n in range((LAST - FIRST).days + 1)]
days = [day for day in days if day.weekday() < 5]


def price():
    return max(390, int(rng.lognormvariate(8.9, 0.9)))


def transposed(cents):
    """Two neighbouring digits swapped: the clerk's classic."""
    digits = list(str(abs(cents)))
    for i in range(len(digits) - 1):
        if digits[i] != digits[i + 1] and digits[i + 1] != "0":
            digits[i], digits[i + 1] = digits[i + 1], digits[i]
            return (1 if cents > 0 else -1) * int("".join(digits))
    return cents + 100


books = []
for number in range(ENTRIES):
    day = days[number * len(days) // ENTRIES]
    dice = rng.random()
    if dice < 0.90:
        books.append([f"INV-2026-{10001 + number}", day, price()])
    elif dice < 0.96:
        books.append([f"REFUND-2026-{10001 + number}", day, -price()])
    elif dice < 0.99:
        books.append([f"PO-{70001 + number}", day, -4 * price()])
    else:
        books.append([f"Direct debit, mandate {50001 + number}", day, -price()])

picked = rng.sample(range(ENTRIES), MISSING_AT_BANK + OTHER_AMOUNT)
absent, wrong = set(picked[:MISSING_AT_BANK]), set(picked[MISSING_AT_BANK:])
bank = []
for number, (reference, day, cents) in enumerate(books):
    if number in absent:
        continue
    if number in wrong:
        # A payment provider's fee held back, a cent of rounding, or a typing error.
        cents = rng.choice([cents - rng.randrange(25, 190), cents + rng.choice([-1, 1]), transposed(cents)])
    bank.append([reference, min(LAST, day + datetime.timedelta(rng.choice([0, 0, 0, 1, 2]))), cents])
for number in range(MISSING_IN_BOOKS):
    day = days[(number + 1) * len(days) // (MISSING_IN_BOOKS + 1)]
    reference, cents = rng.choice(
        [(f"BANK-FEE-{901 + number}", -rng.randrange(150, 2500)), (f"UNKNOWN-PAYER-{301 + number}", price())]
    )
    bank.append([reference, day, cents])
bank.sort(key=lambda entry: entry[1])

for name, entries in (("ours.csv", books), ("bank.csv", bank)):
    with open(pathlib.Path(__file__).with_name(name), "w", newline="", encoding="utf-8") as file:
        out = csv.writer(file, lineterminator="\n")
        out.writerow(["reference", "booked_on", "amount_cents"])
        out.writerows(entries)

#!/usr/bin/env python3
"""The work of `make try`: orders from a JSON file go through dictionaries, an SQLite database and back to JSON.

    example.py --generate FILE    writes the orders, the same every time
    example.py FILE               does the work and prints a digest of its results

Only Python's own modules. Under PYTHONMALLOC=malloc each of the interpreter's objects is one malloc, as each of
SQLite's is anyway: some ten million in a run, from 16 bytes to megabytes, with lifetimes from one expression to the
whole run.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import sqlite3
import sys

ORDERS = 30_000
WORDS = [
    *("amber", "basin", "cedar", "delta", "ember", "fjord", "grove", "haven", "inlet", "jetty", "knoll", "ledge"),
    *("meadow", "notch", "orchard", "prairie", "quarry", "ridge", "shoal", "timber", "upland", "valley", "willow"),
    *("yarrow", "zephyr"),
]


def generate(path: str) -> None:
    rng = random.Random(20150614)
    partial = path + ".partial"
    with open(partial, "w", encoding="utf-8") as out:
        for number in range(ORDERS):
            order = {
                "id": number,
                "customer": {
                    "id": rng.randrange(ORDERS // 12),
                    "name": " ".join(rng.choices(WORDS, k=2)).title(),
                    "tags": rng.sample(WORDS, k=rng.randrange(5)),
                },
                "day": rng.randrange(365),
                "note": " ".join(rng.choices(WORDS, k=rng.randrange(40))),
                "items": [
                    {"sku": f"{rng.choice(WORDS)}-{rng.randrange(900)}", "count": rng.randrange(1, 9), "cents": cents}
                    for cents in rng.choices(range(99, 20000), k=rng.randrange(1, 9))
                ],
            }
            out.write(json.dumps(order) + "\n")
    os.replace(partial, path)


def load(path: str) -> list[dict]:
    with open(path, encoding="utf-8") as lines:
        return [json.loads(line) for line in lines]


def totals_by_customer(orders: list[dict]) -> dict[int, dict]:
    totals: dict[int, dict] = {}
    for order in orders:
        entry = totals.setdefault(order["customer"]["id"], {"orders": [], "cents": 0, "words": {}})
        entry["orders"].append(order["id"])
        entry["cents"] += sum(item["count"] * item["cents"] for item in order["items"])
        for word in order["note"].split():
            entry["words"][word] = entry["words"].get(word, 0) + 1
    return totals


def fill_database(orders: list[dict]) -> sqlite3.Connection:
    database = sqlite3.connect(":memory:")
    database.executescript(
        """
        CREATE TABLE orders (id INTEGER PRIMARY KEY, customer INTEGER, name TEXT, day INTEGER, note TEXT);
        CREATE TABLE items (order_id INTEGER, sku TEXT, count INTEGER, cents INTEGER);
        """
    )
    database.executemany(
        "INSERT INTO orders VALUES (?, ?, ?, ?, ?)",
        ((o["id"], o["customer"]["id"], o["customer"]["name"], o["day"], o["note"]) for o in orders),
    )
    database.executemany(
        "INSERT INTO items VALUES (?, ?, ?, ?)",
        ((o["id"], i["sku"], i["count"], i["cents"]) for o in orders for i in o["items"]),
    )
    database.executescript("CREATE INDEX by_sku ON items (sku); CREATE INDEX by_customer ON orders (customer);")
    return database


QUERIES = [
    "SELECT sku, SUM(count * cents) AS total, COUNT(*) FROM items GROUP BY sku ORDER BY total DESC, sku",
    "SELECT o.customer, o.name, SUM(i.count * i.cents) FROM orders o JOIN items i ON i.order_id = o.id "
    "GROUP BY o.customer, o.name ORDER BY 3 DESC, 1, 2",
    "SELECT day, COUNT(*), MAX(LENGTH(note)), GROUP_CONCAT(name, ';') FROM orders WHERE note LIKE '%willow%ridge%' "
    "GROUP BY day ORDER BY day",
    "SELECT id, UPPER(SUBSTR(note, 1, 40)) FROM orders ORDER BY note, id",
]


def change_database(database: sqlite3.Connection) -> int:
    database.execute("UPDATE orders SET note = REPLACE(note, 'amber', 'a longer word than amber') WHERE day % 3 = 0")
    database.execute("DELETE FROM items WHERE order_id IN (SELECT id FROM orders WHERE day % 5 = 0)")
    return database.execute("SELECT COUNT(*) + SUM(cents) FROM items").fetchone()[0]


def work(path: str) -> str:
    digest = hashlib.sha256()
    orders = load(path)
    totals = totals_by_customer(orders)
    digest.update(json.dumps(totals, sort_keys=True).encode())
    database = fill_database(orders)
    del orders
    for query in QUERIES:
        digest.update(json.dumps(database.execute(query).fetchall()).encode())
    digest.update(str(change_database(database)).encode())
    for query in QUERIES:
        digest.update(json.dumps(database.execute(query).fetchall()).encode())
    database.close()
    digest.update(json.dumps(totals_by_customer(load(path)), sort_keys=True).encode())
    return digest.hexdigest()


def main(arguments: list[str]) -> int:
    if len(arguments) == 2 and arguments[0] == "--generate":
        generate(arguments[1])
    elif len(arguments) == 1:
        print(work(arguments[0]))
    else:
        print("usage: example.py [--generate] FILE", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

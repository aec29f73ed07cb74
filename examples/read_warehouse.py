"""Reads the warehouse in Python: the cost of each customer, from the rows that are safe to read.

    python examples/read_warehouse.py

In a notebook, keep the session open and ask again: every call of `connect` reads what is visible at that moment.
"""

from ads_pipeline.api import open_readers

COSTS = """
    SELECT customer_id, count(DISTINCT date) AS days, sum(cost_micros) / 1e6 AS cost
    FROM campaign_daily GROUP BY customer_id ORDER BY customer_id
"""


def main() -> None:
    with open_readers() as readers, readers.connect(["campaign_daily"]) as session:
        print("customer_id  days  cost")
        for customer_id, days, cost in session.execute(COSTS).fetchall():
            print(f"{customer_id:<12} {days:>4}  {cost:.2f}")


if __name__ == "__main__":
    main()

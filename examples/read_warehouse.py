"""Reads the warehouse in Python: the cost of each customer and its currency, from the rows that are safe to read.

    python examples/read_warehouse.py

Every call of `connect` reads what is visible at that moment. Costs of several currencies are not to be added.
"""

from ads_pipeline.api import open_readers

COSTS = """
    SELECT customer_id, count(DISTINCT date) AS days, sum(cost_micros) / 1e6 AS cost, coalesce(currency_code, '?')
    FROM campaign_daily GROUP BY customer_id, currency_code ORDER BY customer_id, currency_code
"""


def main() -> None:
    with open_readers() as readers, readers.connect(["campaign_daily"]) as session:
        print("customer_id  days  cost")
        for customer_id, days, cost, currency in session.execute(COSTS).fetchall():
            print(f"{customer_id:<12} {days:>4}  {cost:.2f} {currency}")


if __name__ == "__main__":
    main()

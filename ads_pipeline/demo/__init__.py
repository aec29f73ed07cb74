"""Makes up a week of reports to try the product with."""

"""Spark: sessions from the settings, and the product's own Spark with its directories and addresses."""

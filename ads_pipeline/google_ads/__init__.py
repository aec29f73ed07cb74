"""Fetches reports from Google Ads with the official client, an optional extra of the package."""

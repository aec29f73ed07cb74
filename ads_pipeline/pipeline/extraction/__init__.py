"""Chooses the days to fetch, plans their cost, and builds the source that fetches from Google Ads."""

"""Prefect, Ray and what runs at set times: around the plain stages, never inside them."""

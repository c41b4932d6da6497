"""Frozen warehouses: tables as released versions wrote them, which every later version reads and continues."""

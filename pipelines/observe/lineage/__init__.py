"""Lineage of a pipeline in the form of OpenLineage: its datasets, their columns, and the counts of a run.

This room makes plain values, needs no package of OpenLineage and sends nothing. `tidegate lineage` shows them, and the
operator gives them to Airflow's provider.
"""

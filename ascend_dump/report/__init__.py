"""Output: tables, JSON documents, HTML pages, histograms."""

"""What people and programs see: tables, JSON documents, pages, histograms."""

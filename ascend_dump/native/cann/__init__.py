"""What CANN itself defines: files, names, types, formats and settings, without a framework."""

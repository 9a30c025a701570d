"""What torchair defines: its graphs as Python text."""

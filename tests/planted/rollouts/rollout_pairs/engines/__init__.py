"""Inference engines, written as serving engineers write them; weights come from models of transformers."""

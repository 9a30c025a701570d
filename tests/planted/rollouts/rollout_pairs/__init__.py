"""Rollouts and trainers: correct pairs, and pairs with one planted fault."""

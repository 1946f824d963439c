"""Devices, processes, numerical precision and memory."""

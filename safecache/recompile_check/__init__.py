"""Hits of a sample are hidden from torch, which compiles them; what it saves is compared with them"""

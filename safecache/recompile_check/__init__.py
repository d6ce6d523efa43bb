"""Whether what is hit is what is compiled now: some hits are hidden from torch, and compared with what it saves then"""

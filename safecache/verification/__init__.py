"""Whether what was hit is what is compiled now: graphs compiled again in processes of their own, and compared"""

"""The file system, without any policy of a cache: directories entered through no link, and files of whom and where.

May import settings and reporting.
"""

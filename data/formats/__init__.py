"""Readers of file formats: bytes that anybody wrote in, arrays out."""

"""The JSON of the native API: one set of shapes, which server and client share.

The server reads requests with them and writes answers; the client writes requests and reads
answers. The schemas of the OpenAPI document are made of them, with the docstrings as descriptions.
"""

"""Tokenized text: files, URLs, Parquet, tokenizers, chats."""

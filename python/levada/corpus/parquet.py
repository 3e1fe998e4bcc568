"""Reads Parquet files as text. Each row is a document, whose text or chat is the value of one column."""

from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from typing import Any

from levada import _levada
from levada.base.errors import SourceError, Unsupported
from levada.base.packages import import_for

__all__ = ["FORMATS"]

_BATCH_BYTES = 1 << 20
"""Approximate number of bytes of rows to decode at a time."""

_MAX_ROWS = 1 << 14
"""Maximum number of rows to decode at a time."""

_MIN_ROWS = 16
"""Number of rows that may be decoded at a time, however large each may be."""

_MAX_VALUES = 1 << 17
"""Average number of list values to read at a time. Limited separately, because equal values take no bytes of the
file."""

_MAX_ROW_BYTES = 64 << 20
"""Maximum size of a row, the same as of a line of a .jsonl."""

_MAX_GROUP_VALUES = 1 << 27
"""Maximum number of list values in a row group, since a single row may have all of them."""

_VALUE_BYTES = 64
"""Minimum memory of a list value, in bytes."""

_BUFFER_BYTES = 1 << 20
"""Number of stored bytes of a column to read at a time."""


class _Stream(io.RawIOBase):
    """Wraps a file for pyarrow."""

    def __init__(self, file: _levada.File) -> None:
        self._file, self._at = file, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        self._at = offset + {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._file.size}[whence]
        return self._at

    def read(self, size: int = -1) -> bytes:
        data = self._file.read(self._at, size if size >= 0 else self._file.size)
        self._at += len(data)
        return data


class ParquetReader:
    """Reads the documents of a file in row order. Must be used by one thread at a time."""

    def __init__(self, file: _levada.File, column: str, skip_bad: bool, chats: bool) -> None:
        path = file.path
        self._pyarrow = import_for(path, "pyarrow")
        parquet = import_for(path, "pyarrow", "pyarrow.parquet")
        self._source, self._path, self._column = file, path, column
        self._skip_bad, self._chats = skip_bad, chats
        self.stored_bytes = self.bad_lines = self.first_row = self._row = 0
        self.first_bad_lines: list[int] = []
        try:
            self._metadata = parquet.read_metadata(_Stream(file))
            # pre_buffer would read entire row groups, and so would a buffer of 0 bytes.
            self._file = parquet.ParquetFile(
                _Stream(file),
                metadata=self._metadata,
                read_dictionary=self._dictionaries(),
                buffer_size=_BUFFER_BYTES,
                pre_buffer=False,
                page_checksum_verification=True,
            )
            schema = self._metadata.schema.to_arrow_schema()
        except (self._pyarrow.ArrowException, OSError, ValueError) as error:
            raise self._damaged(error) from error
        self._steps, type = self._resolve(schema)
        self._check_type(type)
        self._texts = self._read()

    def _resolve(self, schema: Any) -> tuple[list[str], Any]:
        """Returns the names that lead to the text, the column's and those of fields of structs in it, and the type of
        the text. "a.b" is the field b of the column a, unless a column has that name."""
        names, rest = schema.names, self._column
        steps: list[str] = []
        found: Any = schema
        while rest:
            step = rest if rest in names else max((each for each in names if rest.startswith(f"{each}.")), key=len, default="")
            if names.count(step) != 1:
                has, all_names = "several columns" if step in names else "no column", ", ".join(schema.names) or "none"
                raise SourceError(f"{self._path} has {has} {self._column}: name one of ({all_names}) with text_field= or --text-field")
            found = found.field(step).type
            names = [each.name for each in found.fields] if self._pyarrow.types.is_struct(found) else []
            steps, rest = [*steps, step], rest[len(step) + 1 :]
        return steps, found

    def read(self) -> list[str] | None:
        """Returns the next documents, or None at the end. Raises SourceError, which names file and row."""
        try:
            return next(self._texts, None)
        except (self._pyarrow.ArrowException, OSError, MemoryError) as error:
            raise self._damaged(error) from error

    def _dictionaries(self) -> list[str]:
        """Returns the leaves of the column that are stored dictionary-encoded. If they are read in that form, a text
        that all rows share takes its memory only once."""
        encodings: dict[str, set[str]] = {}
        for chunk in (chunk for number in range(self._metadata.num_row_groups) for chunk in self._chunks_of(number)):
            if chunk.physical_type == "BYTE_ARRAY":
                encodings.setdefault(chunk.path_in_schema, set()).update(chunk.encodings)
        return [path for path, used in encodings.items() if used & {"PLAIN_DICTIONARY", "RLE_DICTIONARY"}]

    def _check_type(self, type: Any) -> None:
        types = self._pyarrow.types
        if self._chats:
            is_list = types.is_list(type) or types.is_large_list(type)
            fits, wanted = is_list and types.is_struct(type.value_type), "a list of messages: name a column of lists of structs"
        else:
            value = type.value_type if types.is_dictionary(type) else type
            fits = types.is_string(value) or types.is_large_string(value) or types.is_string_view(value)
            is_binary = types.is_binary(value) or types.is_large_binary(value) or types.is_binary_view(value)
            wanted = f"text: {'cast it to strings in the file, or ' if is_binary else ''}name a column of strings"
        if not fits:
            raise SourceError(f"the column {self._column} of {self._path} is of type {type}, which is not {wanted} with text_field= or --text-field")

    def _read(self) -> Iterator[list[str]]:
        documents, rows = 0, self._metadata.num_rows
        for piece in self._pieces():
            texts = self._texts_of(piece)
            documents += len(texts)
            self.stored_bytes = self._source.size * self._row // rows
            yield texts
        if not documents:
            what = f"all of its {rows} rows are bad; fix the file or leave it out" if rows else "it has no rows; leave it out"
            raise SourceError(f"{self._path} holds no documents: {what}")

    def _pieces(self) -> Iterator[Any]:
        """Yields the column in batches of rows of about _BATCH_BYTES when decoded, or of a single larger row."""
        for batch in self._batches():
            column = batch.column(self._steps[0])
            if len(self._steps) > 1:
                column = import_for(self._path, "pyarrow", "pyarrow.compute").struct_field(column, self._steps[1:])
            ends = self._decoded_bytes(column).cumsum()
            begin = 0
            while begin < len(column):
                before = ends[begin - 1] if begin else 0
                end = max(int(ends.searchsorted(before + _BATCH_BYTES, "right")), begin + 1)
                if ends[end - 1] - before > _MAX_ROW_BYTES:
                    self._row += 1
                    self._leave_out(self._row, f"has {(ends[end - 1] - before) >> 20} MiB, and a row may have {_MAX_ROW_BYTES >> 20} MiB")
                else:
                    yield column.slice(begin, end - begin)
                begin = end

    def _decoded_bytes(self, array: Any) -> Any:
        """Returns the approximate decoded size of each value in bytes."""
        types, compute = self._pyarrow.types, import_for(self._path, "pyarrow", "pyarrow.compute")
        type, numpy = array.type, import_for(self._path, "numpy")
        if types.is_dictionary(type):
            sizes = numpy.append(self._decoded_bytes(array.dictionary), 0)
            return sizes[array.indices.cast("int64").fill_null(-1).to_numpy(zero_copy_only=False)]
        if types.is_string_view(type):
            array, type = array.cast("large_string"), self._pyarrow.large_string()  # pyarrow cannot tell the lengths of views
        if types.is_string(type) or types.is_large_string(type):
            return compute.binary_length(array).cast("int64").fill_null(0).to_numpy(zero_copy_only=False)
        if types.is_list(type) or types.is_large_list(type):
            before = numpy.insert((self._decoded_bytes(array.values) + _VALUE_BYTES).cumsum(), 0, 0)
            return numpy.diff(before[array.offsets.to_numpy()])
        if types.is_struct(type):
            return sum((self._decoded_bytes(array.field(number)) for number in range(type.num_fields)), start=numpy.zeros(len(array), "int64"))
        return numpy.full(len(array), _VALUE_BYTES)

    def _batches(self) -> Iterator[Any]:
        """Yields the batches of all row groups in order. Each has as many rows as take _BATCH_BYTES in the file on
        average."""
        groups = list(map(self._chunks_of, range(self._metadata.num_row_groups)))
        for chunks in groups:
            for chunk in chunks:
                begin = min(chunk.data_page_offset, chunk.dictionary_page_offset or chunk.data_page_offset)
                self._source.will_read(begin, chunk.total_compressed_size)
        for number, chunks in enumerate(groups):
            rows, stored = self._metadata.row_group(number).num_rows, sum(each.total_uncompressed_size for each in chunks)
            values = max((each.num_values for each in chunks), default=0)
            if values > max(rows, _MAX_GROUP_VALUES):
                raise SourceError(
                    f"{self._path} has a row group of {values} values, more than {_MAX_GROUP_VALUES}: write it with smaller row groups"
                )
            rows = min(rows * _BATCH_BYTES // max(stored, 1), rows * _MAX_VALUES // max(values, 1), self._rows_of_prefixes(chunks))
            rows = min(max(rows, 1), _MAX_ROWS)
            yield from self._file.iter_batches(rows, row_groups=[number], columns=[self._column], use_threads=False)

    def _rows_of_prefixes(self, chunks: list[Any]) -> int:
        """Returns the number of rows to read at a time in view of texts that repeat the prefix of the one before. Each
        may have all bytes of its chunk, however few are stored for it."""
        largest = max((each.total_uncompressed_size for each in chunks if "DELTA_BYTE_ARRAY" in each.encodings), default=1)
        return max(_MAX_ROW_BYTES // max(largest, 1), _MIN_ROWS)

    def _chunks_of(self, number: int) -> list[Any]:
        """Returns a row group's metadata of the column or, for a list of structs, of each of its leaves."""
        group = self._metadata.row_group(number)
        columns = map(group.column, range(group.num_columns))
        return [each for each in columns if f"{each.path_in_schema}.".startswith(f"{self._column}.")]

    def _texts_of(self, column: Any) -> list[str]:
        self.first_row = self._row + 1
        self._row += len(column)
        if self._pyarrow.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        try:
            values = column.to_pylist()
        except UnicodeDecodeError:
            values = [self._decoded(value) for value in column]
        if None in values or ValueError in values:
            values = [value for number, value in enumerate(values, self.first_row) if self._is_good(value, number)]
        return list(map(_json_of, values)) if self._chats else values

    @staticmethod
    def _decoded(value: Any) -> Any:
        """Returns a str or None. Raises ValueError for bytes that are not UTF-8."""
        try:
            return value.as_py()
        except UnicodeDecodeError:
            return ValueError

    def _is_good(self, value: Any, row: int) -> bool:
        if value is not None and value is not ValueError:
            return True
        self._leave_out(row, "is null" if value is None else "is not UTF-8")
        return False

    def _leave_out(self, row: int, what: str) -> None:
        """Counts a bad row. Raises SourceError unless bad rows are to be left out."""
        if not self._skip_bad:
            raise SourceError(
                f"row {row} of {self._path} cannot be used: its column {self._column} {what}; fix the file, or skip "
                "such rows (skip_bad=True, --skip-bad)"
            )
        self.bad_lines += 1
        if len(self.first_bad_lines) < 10:
            self.first_bad_lines.append(row)

    def _damaged(self, error: Exception) -> Exception:
        if isinstance(error, self._pyarrow.ArrowNotImplementedError):
            return Unsupported(f"{self._path} cannot be read by this pyarrow: {error}; write the file with another codec")
        if isinstance(error, MemoryError):
            return SourceError(
                f"{self._path} cannot be read after row {self._row}: there is not enough memory ({error}); write it with smaller "
                "row groups and rows"
            )
        return SourceError(
            f"{self._path} cannot be read after row {self._row}: {error}; it is damaged or no Parquet file: write it again"
        )


def _json_of(chat: list[Any]) -> str:
    """Returns the messages as JSON, without null values, which in a table mark absent fields of a message. Values that
    JSON lacks, such as times, become the text that a template would write for them."""

    def without_nulls(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: without_nulls(each) for key, each in value.items() if each is not None}
        return list(map(without_nulls, value)) if isinstance(value, list) else value

    return json.dumps(without_nulls(chat), ensure_ascii=False, default=str)


FORMATS = [_levada.TextFormat(".parquet", ParquetReader)]

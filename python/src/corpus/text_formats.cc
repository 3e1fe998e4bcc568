// Text formats that Python packages read.

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <algorithm>
#include <atomic>
#include <utility>

#include "levada/base/error.h"
#include "levada/tokens/text_reader.h"
#include "python/src/base/callables.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

class PythonTextReader final : public TextReader {
 public:
  PythonTextReader(std::string path, SharedObject reader) : path_(std::move(path)), reader_(std::move(reader)) {}

  bool read(Texts& texts) override {
    const nb::gil_scoped_acquire gil;
    texts.clear();
    try {
      const nb::object read = reader_->attr("read")();
      if (!read.is_none()) {
        for (const nb::handle text : nb::cast<nb::list>(read)) texts.add(utf8_of(text));
      }
      place_ = fmt::format("{}, from row {} on", path_, nb::cast<std::int64_t>(reader_->attr("first_row")));
      stored_bytes_ = nb::cast<std::uint64_t>(reader_->attr("stored_bytes"));
      bad_lines_ = {.count = nb::cast<std::int64_t>(reader_->attr("bad_lines")),
                    .first = nb::cast<std::vector<std::int64_t>>(reader_->attr("first_bad_lines"))};
      return !read.is_none();
    } catch (const nb::python_error& error) {
      rethrow(error);
      throw SourceError(fmt::format("{} cannot be read: {}", path_, describe(error)));
    } catch (const nb::cast_error&) {
      throw SourceError(fmt::format("{} cannot be read: its reader did not return texts", path_));
    }
  }
  std::string place() const override { return place_; }
  std::uint64_t stored_bytes() const override { return stored_bytes_; }
  const BadLines& bad_lines() const override { return bad_lines_; }

 private:
  std::string path_, place_;
  SharedObject reader_;
  std::atomic<std::uint64_t> stored_bytes_ = 0;
  BadLines bad_lines_;
};

/// nanobind cannot hold pointers to const.
struct SharedFile {
  std::shared_ptr<const File> file;
};

nb::bytes read_file(const SharedFile& file, std::uint64_t offset, std::uint64_t bytes) {
  const auto size = file.file->identity().size;
  bytes = std::min(bytes, size - std::min(offset, size));
  auto read = nb::steal<nb::bytes>(PyBytes_FromStringAndSize(nullptr, static_cast<Py_ssize_t>(bytes)));
  if (!read.is_valid()) throw nb::python_error();
  const std::span<char> into(PyBytes_AsString(read.ptr()), bytes);
  const nb::gil_scoped_release released;
  if (const auto got = read_fully(*file.file, offset, into); got < bytes) {
    throw SourceError(fmt::format("{} ends at byte {}, {} bytes short: it was cut off while it was being read",
                                  file.file->path(), offset + got, bytes - got));
  }
  return read;
}

}  // namespace

void bind_text_formats(nb::module_& module) {
  nb::class_<SharedFile>(module, "File", "An open file.")
      .def_prop_ro("path", [](const SharedFile& file) { return file.file->path(); })
      .def_prop_ro("size", [](const SharedFile& file) { return file.file->identity().size; })
      .def("read", &read_file, nb::arg("offset"), nb::arg("count"),
           "Returns this number of bytes; fewer only at the end.")
      .def(
          "will_read",
          [](const SharedFile& file, std::uint64_t offset, std::uint64_t bytes) {
            file.file->will_read(offset, bytes);
          },
          nb::arg("offset"), nb::arg("count"), nb::call_guard<nb::gil_scoped_release>(),
          "Announces a later read(), so that the file may read ahead.");
  module.def(
      "open_file", [](const std::string& path) { return SharedFile{open_file(path)}; }, nb::arg("path"));
  nb::class_<TextFormat>(module, "TextFormat", "A format of documents, for files with a common extension.")
      .def(
          "__init__",
          [](TextFormat* self, std::string extension, nb::object open) {
            // A std::function is copied, even by threads that do not hold the GIL.
            const std::shared_ptr<nb::object> shared = share(std::move(open));
            new (self) TextFormat{
                std::move(extension),
                [shared](const std::shared_ptr<const File>& file,
                         const TextOptions& options) -> std::unique_ptr<TextReader> {
                  const nb::gil_scoped_acquire gil;
                  try {
                    return std::make_unique<PythonTextReader>(
                        file->path(),
                        share((*shared)(SharedFile{file}, options.field(), options.skip_bad, options.chats)));
                  } catch (const nb::python_error& error) {
                    rethrow(error);
                    throw SourceError(fmt::format("{} cannot be read: {}", file->path(), describe(error)));
                  }
                }};
          },
          nb::arg("extension"), nb::arg("open"),
          nb::sig(
              "def __init__(self, extension: str, open: collections.abc.Callable[[File, str, bool, bool], typing.Any]) "
              "-> None"),
          "open: called with a file, the field of the text, whether to skip unusable documents, and whether the field "
          "is a chat, whose JSON is the text. Returns an object with read(), which returns the next documents as a "
          "list of str, or None at the end; stored_bytes, the bytes of the file read so far; bad_lines, the number of "
          "skipped documents; first_bad_lines, the numbers of the first ten of these; and first_row, the row at which "
          "the documents of the last read() begin.");
}

}  // namespace levada::python

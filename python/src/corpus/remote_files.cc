// Files with URLs, read through Python packages.
#include "levada/sources/remote_files.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "levada/base/error.h"
#include "levada/base/text.h"
#include "python/src/base/callables.h"
#include "python/src/base/escaped_text.h"
#include "python/src/bindings.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

/// Calls act() with the GIL. Converts an OSError to a StorageFault: "cannot ACTION URL: why".
template <typename Act>
auto call(const std::string& action, const std::string& url, const Act& act) {
  const PythonCall python;
  if (!python) throw SourceError("this process is ending and no longer reads remote files");
  try {
    return act();
  } catch (const nb::python_error& error) {
    rethrow(error);
    const auto what = fmt::format("cannot {} {}: ", action, printable(url));
    if (!error.matches(PyExc_OSError)) throw SourceError(what + describe(error));
    const auto number = nb::cast<int>(error.value().attr("errno"));
    throw StorageFault(number, what + printable(escaped_str(error.value().attr("strerror"))));
  } catch (const nb::cast_error&) {
    throw SourceError(fmt::format("cannot {} {}: its package returned something else", action, printable(url)));
  }
}

class PythonFile final : public File {
 public:
  PythonFile(const std::string& url, nb::object file)
      : path_(printable(url)),
        identity_{.size = nb::cast<std::uint64_t>(file.attr("size")),
                  .modified_ns = nb::cast<std::int64_t>(file.attr("modified_ns")),
                  .tag = nb::cast<std::string>(file.attr("tag"))},
        file_(share(std::move(file))) {}

  const std::string& path() const override { return path_; }
  /// Returns the identity at opening. read() throws if the file has changed since.
  FileIdentity identity() const override { return identity_; }

  std::size_t read(std::uint64_t offset, std::span<char> into) const override {
    const auto end = std::min(identity_.size, offset + into.size());
    if (offset >= end) return 0;
    const auto action = fmt::format("read byte {} of", offset);
    return call(action, path_, [&] {
      const auto bytes = nb::cast<nb::bytes>(file_->attr("read")(offset, end));
      const auto size = bytes.size();
      if (size == 0 || size > end - offset) {
        throw StorageFault(
            EIO, fmt::format("cannot {} {}: {} bytes were asked for, and {} came", action, path_, end - offset, size));
      }
      const nb::gil_scoped_release released;
      std::memcpy(into.data(), bytes.c_str(), size);
      return size;
    });
  }

 private:
  std::string path_;
  FileIdentity identity_;
  SharedObject file_;
};

}  // namespace

void bind_remote_files(nb::module_& module) {
  nb::class_<RemoteFiles>(module, "RemoteFiles", "Opens and lists files with URLs.")
      .def(
          "__init__",
          [](RemoteFiles* self, nb::object open, nb::object list) {
            // A std::function is copied, even by threads that do not hold the GIL.
            const std::shared_ptr<nb::object> opener = share(std::move(open)), lister = share(std::move(list));
            new (self) RemoteFiles{
                [opener](const std::string& url) -> std::unique_ptr<File> {
                  return call("open", url, [&] { return std::make_unique<PythonFile>(url, (*opener)(url)); });
                },
                [lister](const std::string& url) {
                  return call("list", url, [&] { return nb::cast<std::vector<std::string>>((*lister)(url)); });
                }};
          },
          nb::arg("open"), nb::arg("list"),
          nb::sig("def __init__(self, open: collections.abc.Callable[[str], typing.Any], list: "
                  "collections.abc.Callable[[str], list[str]]) -> None"),
          "open: returns a file with size, modified_ns, tag and read(start, end), which returns bytes and raises "
          "SourceError once the file has changed. list: returns the names that match a pattern, folders with a slash "
          "at the end; for a URL without a pattern, all files below it. Both raise OSError with errno and strerror.");
}

}  // namespace levada::python

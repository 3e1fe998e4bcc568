#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/deadline.h"
#include "levada/base/text.h"
#include "levada/cli/cli.h"
#include "levada/cli/error_reporter.h"
#include "python/src/base/callables.h"
#include "python/src/base/errors.h"
#include "python/src/base/escaped_text.h"
#include "python/src/bindings.h"
#include "python/src/corpus/tokenizers.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

int command(const std::vector<std::string>& arguments, const std::vector<std::string>& self,
            const nb::object& open_tokenizer, const std::vector<TextFormat>& formats, const RemoteFiles& remote) {
  std::vector<const char*> pointers;
  for (const auto& argument : arguments) pointers.push_back(argument.c_str());
  const auto open = [&open_tokenizer](const cli::TokenizerChoice& choice) -> std::shared_ptr<const Tokenizer> {
    const nb::gil_scoped_acquire gil;
    try {
      return tokenizer_of(open_tokenizer(choice.name, choice.chat_template, choice.special_tokens));
    } catch (const nb::python_error& error) {
      rethrow(error);
      throw;
    }
  };
  cli::Extensions extensions{
      .self = self, .python = self.front(), .open_tokenizer = open, .formats = formats, .remote = remote};
  const nb::gil_scoped_release released;
  return cli::run(static_cast<int>(pointers.size()), pointers.data(), std::move(extensions));
}

}  // namespace

void bind_command(nb::module_& module) {
  module.def(
      "report_error",
      [](const std::string& kind, const EscapedText& message, int lost) {
        cli::report_error(kind_of(kind), message.utf8, lost);
      },
      nb::arg("kind"), nb::arg("message"), nb::arg("lost"),
      "Reports an error such that all ranks together print one sentence. `lost`: a rank that has been lost, or -1.");
  module.def(
      "report_failed_start",
      [](const std::string& kind, const EscapedText& message) {
        const nb::gil_scoped_release released;
        cli::report_failed_start(kind_of(kind), message.utf8);
      },
      nb::arg("kind"), nb::arg("message"),
      "Reports the error of a rank that has not begun to join its job. The ranks that wait for it receive the error "
      "and end.");
  module.def(
      "printable", [](const std::string& text) { return printable(text); }, nb::arg("text"),
      "Returns `text` for one line of a terminal, with control characters escaped and URLs without user, password and "
      "query.");
  module.def(
      "printable_lines", [](const std::string& text) { return printable_lines(text); }, nb::arg("text"),
      "Like printable(), but keeps newlines and tabs.");
  module.def(
      "parse_duration",
      [](const std::string& text) { return std::chrono::duration<double>(parse_duration(text)).count(); },
      nb::arg("text"), "Returns the seconds of \"500ms\", \"30s\", \"2m\" or \"1h\". Raises InvalidArgument.");
  module.def("command", &command, nb::arg("arguments"), nb::arg("self"), nb::arg("open_tokenizer"), nb::arg("formats"),
             nb::arg("remote"),
             nb::sig("def command(arguments: collections.abc.Sequence[str], self: collections.abc.Sequence[str], "
                     "open_tokenizer: collections.abc.Callable[[str, str, bool], Tokenizer], "
                     "formats: collections.abc.Sequence[TextFormat], remote: RemoteFiles) -> int"),
             "Runs the `levada` command and returns its exit status.");
}

}  // namespace levada::python

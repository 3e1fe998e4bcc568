#include "python/src/base/callables.h"

#include <fmt/format.h>
#include <nanobind/stl/string.h>

#include <dlfcn.h>
#include <pthread.h>

#include <atomic>
#include <chrono>
#include <thread>
#include <utility>

#include "levada/base/deadline.h"
#include "levada/base/text.h"
#include "python/src/base/errors.h"
#include "python/src/base/escaped_text.h"

namespace nb = nanobind;

namespace levada::python {

namespace {

/// Counts the calls in progress, so that none is left when the interpreter ends.
class Calls {
 public:
  static Calls& of_process() {
    static auto* const calls = new Calls();
    return *calls;
  }

  /// Returns whether a call may begin.
  bool begin() {
    ++count_;
    if (!is_over_) return true;
    --count_;
    return false;
  }
  void end() { --count_; }
  /// Prevents further calls from beginning, and waits up to ten seconds for those in progress.
  void finish() {
    constexpr auto moment = std::chrono::milliseconds(1);
    const auto deadline = Deadline::after(std::chrono::seconds(10));
    is_over_ = true;
    while (count_ > 0 && !deadline.expired()) std::this_thread::sleep_for(moment);
  }

 private:
  Calls() {
    // A forked child has none of its parent's other threads, nor their calls.
    pthread_atfork(nullptr, nullptr, [] { of_process().count_ = 0; });
  }

  std::atomic<int> count_ = 0;
  std::atomic<bool> is_over_ = false;
};

/// Returns whether this thread holds the GIL. The function is not part of the stable ABI, but every CPython exports it.
bool holds_gil() {
  static const auto check = reinterpret_cast<int (*)()>(dlsym(RTLD_DEFAULT, "PyGILState_Check"));
  return check != nullptr && check() == 1;
}

}  // namespace

PythonCall::PythonCall() {
  if (Calls::of_process().begin()) gil_.emplace();
}

PythonCall::~PythonCall() {
  if (!gil_) return;
  gil_.reset();
  Calls::of_process().end();
}

void ReleaseWithGil::operator()(nb::object* object) const {
  const auto leave = [&] {
    static_cast<void>(object->release());
    delete object;
  };
  if (Py_IsInitialized() == 0) return leave();
  if (holds_gil()) {
    delete object;
    return;
  }
  if (const PythonCall call; call) delete object;
  else leave();
}

void finish_calls_at_exit() {
  const auto finish = nb::cpp_function([] { Calls::of_process().finish(); }, nb::call_guard<nb::gil_scoped_release>());
  nb::module_::import_("atexit").attr("register")(finish);
}

SharedObject share(nb::object object) {
  return SharedObject(new nb::object(std::move(object)));
}

void rethrow(const nb::python_error& error) {
  if (!error.matches(PyExc_Exception)) throw error;
  if (!error.matches(nb::module_::import_("levada.base.errors").attr("Error"))) return;
  throw_error(kind_of(nb::cast<std::string>(error.type().attr("__name__"))), escaped_str(error.value()));
}

std::string describe(const nb::python_error& error) {
  const auto name = nb::cast<std::string>(error.type().attr("__name__"));
  return printable(fmt::format("{}: {}", name, escaped_str(error.value())));
}

std::string_view utf8_of(nb::handle text) {
  if (!PyUnicode_Check(text.ptr())) throw nb::cast_error();
  Py_ssize_t size = 0;
  const char* bytes = PyUnicode_AsUTF8AndSize(text.ptr(), &size);
  if (bytes == nullptr) throw nb::python_error();
  return {bytes, static_cast<std::size_t>(size)};
}

}  // namespace levada::python

// A wire that is written in Python: levada::p2p over what only Python can reach.
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include "levada/base/error.h"
#include "levada/engine/p2p/p2p.h"
#include "python/src/bindings.h"
#include "python/src/launch.h"
#include "python/src/process.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using Memory = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using Slot = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Bytes as a numpy array, which may not be written to although it could be: torch takes no other. With the GIL.
nb::object shown(const Lease& bytes) {
  if (bytes.bytes.empty()) return nb::none();
  using Hold = std::shared_ptr<const void>;
  const nb::capsule owner(new Hold(bytes.hold), [](void* hold) noexcept { delete static_cast<Hold*>(hold); });
  return nb::cast(Memory(const_cast<std::byte*>(bytes.bytes.data()), {bytes.bytes.size()}, owner));
}

/// The engine, for the threads of a wire in Python.
class Link {
 public:
  explicit Link(std::shared_ptr<p2p::Receiver> receiver) : receiver_(std::move(receiver)) {}

  nb::object room_for_body(int from, const Slot& head) {
    const ByteView bytes = view_of(head);
    {
      const nb::gil_scoped_release released;
      body_ = receiver_->room_for_body(from, bytes);
    }
    if (!body_) return nb::none();
    const auto memory = body_.memory();
    // Lent until deliver(): the wire's receive has ended by then.
    return nb::cast(Memory(memory.data(), {memory.size()}, nb::find(this)));
  }
  void deliver(int from, const Slot& head) {
    const ByteView bytes = view_of(head);
    const nb::gil_scoped_release released;
    receiver_->deliver(from, bytes, std::exchange(body_, {}));
  }
  void lost(int peer, const std::string& why) {
    const nb::gil_scoped_release released;
    receiver_->lost(peer, why);
  }
  void send_late() {
    const nb::gil_scoped_release released;
    receiver_->send_late();
  }
  bool is_out(int peer) { return receiver_->is_out(peer); }
  bool all_are_out() { return receiver_->all_are_out(); }

 private:
  static ByteView view_of(const Slot& head) { return std::as_bytes(std::span(head.data(), head.size())); }

  std::shared_ptr<p2p::Receiver> receiver_;
  Block body_;
};

/// Calls start(link) and send(peer, head, body, last) of a Python object.
class PythonWire final : public p2p::Wire {
 public:
  PythonWire(nb::object wire, std::string name, int rank, std::vector<int> host_of)
      : wire_(std::move(wire)), name_(std::move(name)), rank_(rank), host_of_(std::move(host_of)) {}
  ~PythonWire() override {
    // In a forked child its threads are not there, for which it would wait.
    if (current_process() != process_ || !nb::is_alive()) {
      static_cast<void>(wire_.release());
      return;
    }
    const nb::gil_scoped_acquire gil;
    wire_.reset();
  }

  int rank() const override { return rank_; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return name_; }
  void start(std::shared_ptr<p2p::Receiver> receiver) override {
    const nb::gil_scoped_acquire gil;
    wire_.attr("start")(nb::cast(new Link(std::move(receiver)), nb::rv_policy::take_ownership));
  }
  void send(int peer, p2p::Frame frame) override {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire gil;
    try {
      wire_.attr("send")(peer, shown(frame.head), shown(frame.body), frame.last);
    } catch (const nb::python_error& error) {
      throw EngineError(error.what());
    }
  }

 private:
  nb::object wire_;
  std::string name_;
  int rank_;
  std::vector<int> host_of_;
  pid_t process_ = current_process();
};

Membership join_over(nb::object wire, std::string name, int rank, std::vector<int> host_of) {
  if (rank < 0 || rank >= static_cast<int>(host_of.size())) throw InvalidArgument("a wire's rank has no host");
  return Membership(
      p2p::make_engine(std::make_shared<PythonWire>(std::move(wire), std::move(name), rank, std::move(host_of))));
}

}  // namespace

void bind_wire(nb::module_& module) {
  nb::class_<Link>(module, "Link",
                   "What a wire hands over to: one thread receives, one sends late, others may tell of losses.")
      .def("room_for_body", &Link::room_for_body, nb::arg("sender"), nb::arg("head"),
           nb::sig("def room_for_body(self, sender: int, head: typing.Any) -> typing.Any"),
           "An array for the body that follows the head; None where none does.")
      .def("deliver", &Link::deliver, nb::arg("sender"), nb::arg("head"),
           nb::sig("def deliver(self, sender: int, head: typing.Any) -> None"),
           "A frame has come; its body lies where room_for_body() said.")
      .def("lost", &Link::lost, nb::arg("peer"), nb::arg("why"), "A peer has ended without its last frame.")
      .def("send_late", &Link::send_late,
           "Sends what waits for company; ends when all peers are out. For a thread of its own.")
      .def("is_out", &Link::is_out, nb::arg("peer"), "Whether a peer's last frame has come, or it is lost.")
      .def("all_are_out", &Link::all_are_out, "Whether nothing is left to receive.");
  module.attr("MOST_HEAD") = p2p::most_head;
  module.def("join_over", &join_over, nb::arg("wire"), nb::arg("name"), nb::arg("rank"), nb::arg("host_of"),
             nb::sig("def join_over(wire: typing.Any, name: str, rank: int, host_of: collections.abc.Sequence[int]) -> "
                     "Membership"),
             "Joins the ranks of a wire: an object with start(link) and send(peer, head, body, last).");
}

}  // namespace levada::python

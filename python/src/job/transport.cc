// Transports written in Python: levada::p2p over networks that only Python can use.
#include <fmt/format.h>
#include <nanobind/ndarray.h>
#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/vector.h>

#include <chrono>
#include <unordered_map>

#include "levada/base/error.h"
#include "levada/engine/p2p/p2p.h"
#include "python/src/base/escaped_text.h"
#include "python/src/base/process.h"
#include "python/src/bindings.h"
#include "python/src/job/launch.h"

namespace nb = nanobind;

namespace levada::python {
namespace {

using Memory = nb::ndarray<nb::numpy, std::uint8_t, nb::ndim<1>>;
using Slot = nb::ndarray<std::uint8_t, nb::ndim<1>, nb::c_contig, nb::device::cpu>;

/// Returns bytes as a numpy array that is writable, since torch accepts no other, but must not be written. With the
/// GIL.
nb::object shown(const Lease& bytes) {
  if (bytes.bytes.empty()) return nb::none();
  using Hold = std::shared_ptr<const void>;
  const nb::capsule owner(new Hold(bytes.hold), [](void* hold) noexcept { delete static_cast<Hold*>(hold); });
  return nb::cast(Memory(const_cast<std::byte*>(bytes.bytes.data()), {bytes.bytes.size()}, owner));
}

/// The engine as seen by the threads of a Python transport.
class Link {
 public:
  explicit Link(std::shared_ptr<p2p::Receiver> receiver) : receiver_(std::move(receiver)) {}
  Link(const Link&) = delete;
  Link& operator=(const Link&) = delete;

  nb::object room_for_body(int from, const Slot& header) {
    const ByteView bytes = view_of(header);
    Block* body = nullptr;
    {
      const nb::gil_scoped_release released;
      body = &bodies_[from];
      *body = receiver_->room_for_body(from, bytes);
    }
    if (!*body) return nb::none();
    const auto memory = body->memory();
    // Valid until deliver(), when the transport's receive has ended.
    return nb::cast(Memory(memory.data(), {memory.size()}, nb::find(this)));
  }
  void deliver(int from, const Slot& header) {
    const ByteView bytes = view_of(header);
    const nb::gil_scoped_release released;
    Block body = std::exchange(bodies_[from], {});
    const std::size_t body_bytes = body.memory().size();  // gloo does not report how much it has received
    receiver_->deliver(from, bytes, std::move(body), body_bytes);
  }
  void lost(const std::vector<int>& peers, const EscapedText& why) {
    const nb::gil_scoped_release released;
    receiver_->lost(peers, why.utf8);
  }
  void flush_deferred() {
    const nb::gil_scoped_release released;
    receiver_->flush_deferred();
  }
  bool is_closed(int peer) { return receiver_->is_closed(peer); }
  bool all_closed() { return receiver_->all_closed(); }
  bool has_failed() { return receiver_->has_failed(); }

 private:
  static ByteView view_of(const Slot& header) { return std::as_bytes(std::span(header.data(), header.size())); }

  std::shared_ptr<p2p::Receiver> receiver_;
  std::unordered_map<int, Block> bodies_;  ///< not delivered yet, by sender
};

/// Calls a Python object: start(link), from_numpy(array), send(tensors, peer, tag), settle(sent), close(peer) and
/// schedule_flush(at). All except start() must be implemented in C. Between Python instructions, Python runs signal
/// handlers, whose exceptions would interrupt a frame here and be lost on their way through the engine.
class PythonTransport final : public p2p::Transport {
 public:
  PythonTransport(nb::object transport, std::string name, int rank, std::vector<int> host_of,
                  std::size_t max_header_bytes)
      : transport_(std::move(transport)),
        name_(std::move(name)),
        rank_(rank),
        host_of_(std::move(host_of)),
        max_header_bytes_(max_header_bytes) {}
  ~PythonTransport() override {
    // In a forked child, the transport's threads do not exist, so waiting for them would hang.
    if (current_process() != process_ || !nb::is_alive()) {
      static_cast<void>(transport_.release());
      static_cast<void>(unsettled_.release());
      return;
    }
    const nb::gil_scoped_acquire gil;
    unsettled_.reset();
    transport_.reset();
  }

  int rank() const override { return rank_; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return name_; }
  std::size_t max_header_bytes() const override { return max_header_bytes_; }
  void start(std::shared_ptr<p2p::Receiver> receiver) override {
    const nb::gil_scoped_acquire gil;
    transport_.attr("start")(nb::cast(new Link(std::move(receiver)), nb::rv_policy::take_ownership));
  }
  void send(std::span<const int> peers, const p2p::Frame& frame) override {
    call([&] {
      const nb::object header = tensor_of(frame.header), body = tensor_of(frame.body);
      for (const int peer : peers) {
        if (send_part(peer, header, headers_tag) && !body.is_none()) send_part(peer, body, bodies_tag);
        unsettled_bytes_ += frame.header.bytes.size();
      }
      if (!body.is_none() || unsettled_.size() > max_unsettled || unsettled_bytes_ > max_unsettled_bytes) settle();
    });
  }
  void close(int peer) override {
    call([&] {
      unsettled_.append(nb::make_tuple(peer, nb::none(), nb::none()));
      settle();
      transport_.attr("close")(peer);
    });
  }
  void schedule_flush(Clock::time_point at) override {
    const std::chrono::duration<double> seconds = at.time_since_epoch();
    call([&] { transport_.attr("schedule_flush")(seconds.count()); });
  }

 private:
  static constexpr int headers_tag = 1, bodies_tag = 2;
  /// The amount sent before the transport waits for completion, so that it rarely wakes for small frames.
  static constexpr std::size_t max_unsettled = 32, max_unsettled_bytes = 1 << 20;

  nb::object tensor_of(const Lease& bytes) {
    return bytes.bytes.empty() ? nb::none() : transport_.attr("from_numpy")(shown(bytes));
  }
  /// Returns whether the peer can be reached; if not, settle() determines why.
  bool send_part(int peer, const nb::object& tensor, int tag) {
    nb::list tensors;
    tensors.append(tensor);
    try {
      unsettled_.append(nb::make_tuple(peer, transport_.attr("send")(tensors, peer, tag), nb::none()));
      return true;
    } catch (const nb::python_error& error) {
      unsettled_.append(nb::make_tuple(peer, nb::none(), error.value()));
      unsettled_bytes_ += max_unsettled_bytes;  // forces settle()
      return false;
    }
  }
  void settle() {
    transport_.attr("settle")(std::exchange(unsettled_, nb::list()));
    unsettled_bytes_ = 0;
  }
  template <typename Call>
  void call(Call python_call) {
    if (!nb::is_alive()) return;
    const nb::gil_scoped_acquire gil;
    try {
      python_call();
    } catch (const nb::python_error& error) {
      // Do not call error.what(), which may run handlers.
      throw EngineError(fmt::format("{} in the transport {}", nb::type_name(error.type()).c_str(), name_));
    }
  }

  nb::object transport_;
  /// (peer, result of send(), its exception): each keeps alive what it sends. (peer, None, None) follows the last one.
  nb::list unsettled_;
  std::size_t unsettled_bytes_ = 0;
  std::string name_;
  int rank_;
  std::vector<int> host_of_;
  std::size_t max_header_bytes_;
  pid_t process_ = current_process();
};

Membership join_over(nb::object transport, std::string name, int rank, std::vector<int> host_of,
                     std::size_t max_header_bytes, int degree) {
  constexpr std::size_t min_header_bytes = 4096;
  if (rank < 0 || rank >= static_cast<int>(host_of.size())) throw InvalidArgument("a transport's rank has no host");
  if (max_header_bytes < min_header_bytes) throw InvalidArgument("max_header_bytes must be at least 4096");
  return Membership(p2p::make_engine(std::make_shared<PythonTransport>(std::move(transport), std::move(name), rank,
                                                                       std::move(host_of), max_header_bytes),
                                     {.degree = degree}));
}

}  // namespace

void bind_transport(nb::module_& module) {
  nb::class_<Link>(
      module, "Link",
      "The engine as a transport sees it. One thread at a time calls room_for_body() and deliver(); any thread may "
      "call the others.")
      .def("room_for_body", &Link::room_for_body, nb::arg("sender"), nb::arg("header"),
           nb::sig("def room_for_body(self, sender: int, header: typing.Any) -> typing.Any"),
           "Returns an array for the body that follows the header; None if no body follows, or if is_closed().")
      .def("deliver", &Link::deliver, nb::arg("sender"), nb::arg("header"),
           nb::sig("def deliver(self, sender: int, header: typing.Any) -> None"),
           "Delivers a received frame. Its body is in the array that room_for_body() returned.")
      .def("lost", &Link::lost, nb::arg("peers"), nb::arg("why"),
           nb::sig("def lost(self, peers: collections.abc.Sequence[int], why: str) -> None"),
           "Reports that these peers ended without their last frames, all at once.")
      .def("flush_deferred", &Link::flush_deferred, "Sends the frames that were deferred for batching.")
      .def("is_closed", &Link::is_closed, nb::arg("peer"),
           "Returns whether a peer's last frame has arrived, or it is lost.")
      .def("all_closed", &Link::all_closed, "Returns whether nothing is left to receive.")
      .def("has_failed", &Link::has_failed,
           "Returns whether a rank is lost, or a group has ended for a cause and no group has been created since.");
  module.def(
      "join_over", &join_over, nb::arg("transport"), nb::arg("name"), nb::arg("rank"), nb::arg("host_of"),
      nb::arg("max_header_bytes"), nb::arg("degree") = default_degree,
      nb::sig("def join_over(transport: typing.Any, name: str, rank: int, "
              "host_of: collections.abc.Sequence[int], max_header_bytes: int, degree: int = 16) -> Membership"),
      "Joins the ranks of a transport: an object with start(link), from_numpy(array), send(tensors, peer, tag), "
      "settle(sent), close(peer) and schedule_flush(at), as ProcessGroupTransport describes them. `degree` is the one "
      "that choose_engine() was called with.");
}

}  // namespace levada::python

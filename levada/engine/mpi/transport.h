// Sends frames between the ranks of a communicator, with MPI's point-to-point calls.
#pragma once

#include <mpi.h>

#include <atomic>
#include <cstddef>
#include <deque>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "levada/engine/mpi/host_watch.h"
#include "levada/engine/p2p/transport.h"

namespace levada::mpi {

/// Throws EngineError unless an MPI call has succeeded.
void check(int result, const char* call);

/// Owns all messages of the communicator that have this transport's two tags. All ranks pass the same tags and
/// max_piece_bytes. In addition to the engine, its creator must keep the transport alive until is_over().
class MpiTransport final : public p2p::Transport {
 public:
  struct Settings {
    MPI_Comm communicator = MPI_COMM_NULL;  ///< returns errors instead of aborting; outlives the transport
    int header_tag = 0;
    int body_tag = 1;
    std::size_t max_piece_bytes = 0;
    std::shared_ptr<HostWatch> watch = {};  ///< may be empty
  };
  MpiTransport(const Settings& settings, int rank, std::vector<int> host_of);
  ~MpiTransport() override;

  int rank() const override { return rank_; }
  const std::vector<int>& host_of() const override { return host_of_; }
  std::string name() const override { return "mpi"; }
  std::size_t max_header_bytes() const override { return std::size_t{16} << 10; }
  void start(std::shared_ptr<p2p::Receiver> receiver) override;
  void send(std::span<const int> peers, const p2p::Frame& frame) override;
  void close(int peer) override;
  void schedule_flush(Clock::time_point at) override;
  Duration progress() override;

  /// Returns whether every peer has closed and has been sent everything. From then on, the transport no longer calls
  /// MPI, and wait_until_over() returns at once.
  bool is_over() const { return has_ended_; }
  /// Waits at most five seconds for this rank's engine to leave. Returns whether it has left.
  bool has_left();
  /// Waits until every peer's engine has left, for at most `leave_timeout`, or only a few seconds if a peer was lost or
  /// a group has ended for a cause. In that case a peer may hang, and no rank needs the messages in flight.
  void wait_until_over(Duration leave_timeout);
  /// Returns whether a peer was lost or the engine gave it up; valid once is_over(). MPI may still have messages to or
  /// from that peer.
  bool has_losses() const { return has_losses_; }
  /// Returns the final p2p::Receiver::has_failed(); valid once is_over().
  bool has_failed() const { return has_failed_; }

 private:
  /// A frame that is being received; MPI writes to its memory.
  struct Incoming {
    enum class State { header_coming, header_here, body_coming, complete } state = State::header_coming;
    std::unique_ptr<std::byte[]> header{};
    std::size_t header_bytes = 0;
    Block body{};
    std::size_t landed = 0;      ///< bytes of the body that have arrived
    bool is_last_posted = true;  ///< whether the receive of the body's last piece is posted
  };
  /// An MPI request and its purpose.
  struct Operation {
    MPI_Request request = MPI_REQUEST_NULL;
    int peer = -1;
    Lease sent{};                  ///< memory that MPI reads
    Incoming* incoming = nullptr;  ///< or the frame that MPI writes to
  };
  struct Peer {
    std::deque<Incoming> incoming{};           ///< in the order sent; guarded by polling_
    std::atomic<bool> is_lost = false;         ///< reported by MPI, or by the peer itself
    std::atomic<bool> has_last_frame = false;  ///< close() has been called
  };
  Peer& peer(int rank) { return peers_[static_cast<std::size_t>(rank)]; }

  void run();
  /// Reports the ranks of hosts that no longer answer as lost.
  void check_hosts();
  bool try_end();
  /// Returns how long a waiting thread may sleep.
  Duration pause(Clock::time_point now) const;
  /// Makes progress. Returns whether anything has moved, or false if another thread is polling.
  bool poll(Clock::time_point now);

  // With polling_ held:
  bool accept_header();
  bool complete_operations();
  void complete(const Operation& operation, int result, const MPI_Status& status);
  void advance(int from);
  void post_piece(int from, Incoming& frame);

  // With sends_ held. These return MPI's result.
  int send_piece(int to, Lease bytes, int tag);
  int send_to(int to, const p2p::Frame& frame);

  void lose(int peer, const std::string& why);
  std::string describe_wait(p2p::Receiver& receiver, Duration waited) const;

  const Settings settings_;
  const int rank_;
  const std::vector<int> host_of_;
  std::vector<Peer> peers_;
  p2p::Receiver* receiver_ = nullptr;  ///< kept alive by the thread
  std::weak_ptr<p2p::Receiver> weak_receiver_;
  std::thread thread_;
  Clock::time_point closed_at_ = Clock::time_point::max();  ///< when all peers had closed; used only by the thread

  std::mutex polling_;
  std::vector<Operation> operations_;  ///< guarded by polling_, as are the next three, which are scratch space
  std::vector<MPI_Request> requests_;
  std::vector<int> indices_;
  std::vector<MPI_Status> statuses_;

  std::mutex sends_;                  ///< may be taken while polling_ is held
  std::vector<Operation> new_sends_;  ///< guarded by sends_

  std::atomic<bool> is_given_up_ = false;  ///< whether peers that have not closed are assumed to hang
  std::atomic<bool> is_over_ = false;      ///< whether sending and receiving have finished
  std::atomic<bool> has_ended_ = false;    ///< whether the thread has also released the engine
  std::atomic<bool> has_losses_ = false;
  std::atomic<bool> has_failed_ = false;
  std::atomic<bool> is_pending_ = false;  ///< whether there are operations
  std::atomic<Clock::time_point> flush_at_ = Clock::time_point::max();
  std::atomic<Clock::time_point> moved_at_ = Clock::now();
  std::atomic<Clock::time_point> waited_at_ = Clock::time_point();  ///< time of the last call of progress()
};

}  // namespace levada::mpi

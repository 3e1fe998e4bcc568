// Collectives of one group, carried out one after the other in the background.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/reduce/bucket_message.h"

namespace levada {

/// One result for each input, all in one memory. The launcher of the collective knows their types and shapes.
struct Results {
  std::vector<std::byte*> data;
  std::shared_ptr<const void> owner = {};
};

/// This rank's end of its group's collectives. They run in the order in which they are launched, which is the same on
/// all ranks, on a thread of their own. Ranks that share memory are called a host here. A sum adds the ranks in order;
/// where the group has several hosts, it adds the ranks of each host in order, and then the hosts' sums in the order of
/// their lowest ranks. Its bits depend on nothing else. One thread at a time. After any exception but InvalidArgument,
/// all later collectives throw the same one. An exception of one rank alone, such as Timeout, also ends the group
/// (Engine::abort()), since the others would wait for that rank.
class Reducer {
 public:
  struct Options {
    /// Reducers of the ranks meet by it, in whatever order each rank makes those of a group.
    std::string name = {};
    int window = 1;      ///< messages of a rank that others have not received yet
    Duration timeout{};  ///< of one wait for another rank or for memory
    /// As WaitFor::poll, on the thread of a call of this class that waits; its exception aborts the group and ends the
    /// call.
    std::function<void()> poll = {};
    int job_rank = -1;  ///< this rank's number in the whole job, for errors; -1: unknown
  };
  /// Collective: opens channels in a subgroup of all ranks. Throws InvalidArgument while this rank has another Reducer
  /// of the group with the same name.
  Reducer(std::shared_ptr<Engine> group, Options options);
  /// Cancels what has not ended.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Returns memory for inputs, and waits until there is some. `what` names the operation in the Timeout. Throws as
  /// Engine::try_allocate() does.
  Block allocate_inputs(std::size_t bytes, std::string_view what);

  /// Starts a collective of the inputs of `messages`, which are laid out in order, as BucketLayout says: one piece for
  /// each rank, or for an all-gather a single one. There is at least one message. The results: a reduce-scatter returns
  /// the sum of this rank's piece; an all-reduce the sums of all pieces side by side; an all-gather all ranks' inputs
  /// side by side. The future throws InvalidArgument, naming ranks, input and shapes, where ranks disagree. `awaited`:
  /// the caller has nothing else to do; if nothing is running, the collective runs inside this call.
  std::shared_future<Results> launch(CollectiveSpec spec, std::vector<BucketMessage> messages, bool awaited = false);

  /// Waits until a collective that was launched here has ended. Throws what `poll` threw meanwhile.
  void wait_for(const std::shared_future<Results>& results);

  /// Returns whether no one else keeps the group, so that nothing more can be launched in it.
  bool is_abandoned() const { return parent_.use_count() == 1; }

  /// Waits until all collectives have ended, and releases memory that nobody holds to the system.
  void trim();

 private:
  struct Task {
    CollectiveSpec spec;
    std::vector<BucketMessage> messages;
    std::promise<Results> results;
  };
  struct Outgoing {
    Channel* channel = nullptr;
    Lease message;
  };
  /// Messages of one rank: on which channel they come, how their inputs are laid out, and what has come.
  struct Incoming {
    std::shared_ptr<Channel> channel;
    const BucketLayout* layout = nullptr;
    PeerMessages* peer = nullptr;
  };
  using Peers = std::vector<PeerMessages>;

  /// Calls options_.poll() on a caller's thread. Keeps its exception for interruptible() and throws EngineError.
  void poll_caller();
  template <typename Work>
  auto interruptible(Work work);
  void run() noexcept;
  /// Returns the next task, or nothing once the Reducer is being destroyed.
  std::optional<Task> next_task();
  /// `poll`: for waits on the calling thread.
  void execute(Task task, const std::function<void()>* poll) noexcept;
  /// Aborts the group because of broken_, unless that is the loss of a rank.
  void end_group() noexcept;
  Results results_of(CollectiveSpec spec, std::vector<BucketMessage> messages);

  /// Sends this rank's messages to all ranks and receives theirs. Throws InvalidArgument where layouts differ.
  Peers exchange(const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Writes the messages' headers.
  std::deque<Outgoing> outgoing(Channel& channel, const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Returns a message to all ranks without inputs.
  std::deque<Outgoing> announcement(const BucketLayout& layout, ByteView body = {});
  /// Returns the ranks among `from` whose messages to all ranks are not complete in `peers`.
  std::vector<Incoming> missing_from(const std::vector<int>& from, const BucketLayout& layout, Peers& peers);
  /// Sends in order and receives until nothing is missing and, if `until_sent`, all has been sent.
  void transfer(std::deque<Outgoing>& to_send, std::vector<Incoming> missing, bool until_sent = true);
  /// Receives what has arrived, and returns whether that was anything. Throws as throw_left() does where the rank has
  /// left.
  bool receive(const Incoming& from);
  /// If layouts differ, all ranks exchange their specs and throw InvalidArgument. So do the collectives that a rank has
  /// before the furthest flush that one of them has reached, so that all go on together after it.
  void check_agreement(const BucketLayout& layout, Peers& peers);
  /// Throws CorruptMessage where inputs are missing.
  static void check_inputs(const BucketLayout& layout, const PeerMessages& peer);

  Results reduce(const BucketLayout& layout, const Peers& peers);
  Results all_gather_sums(CollectiveSpec spec, const Results& sums);
  Results concatenate(const BucketLayout& layout, const Peers& peers);
  /// reduce() of exchange(), where there are several hosts.
  Results reduce_between_hosts(const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Adds up the inputs of this host's ranks: for this rank into `own`, and for the ranks that it serves into the
  /// messages that it returns, which are for them. All as `sums_layout` says.
  std::deque<Outgoing> reduce_in_host(const BucketLayout& layout, std::vector<BucketMessage> messages,
                                      const BucketLayout& sums_layout, std::byte* own);
  /// `hosts`: each host's sums for this rank.
  void add_up_hosts(const BucketLayout& layout, const std::vector<Incoming>& hosts, const Results& to) const;
  /// Returns all ranks by the lowest of their host.
  std::map<int, std::vector<int>> hosts_of(const Peers& announced) const;
  /// Returns the ranks of other hosts for which this rank makes its host's sums.
  std::vector<int> served_ranks() const;
  /// Adds up pieces `number` of all inputs of `peers`, and divides the sums. `to`: laid out as `sums_layout` says.
  static void add_up(const BucketLayout& layout, const Peers& peers, int number, const BucketLayout& sums_layout,
                     std::byte* to, std::size_t divisor = 1);

  /// Returns memory for results as `layout` says: the engine's if there is some now, else the heap's.
  Results allocate_results(const BucketLayout& layout);
  /// Waits until there is memory. Throws EngineError for more than the engine can ever allocate.
  Block allocate(std::size_t bytes);
  std::size_t divisor_of(const CollectiveSpec& spec) const {
    return spec.op == ReduceOp::average ? static_cast<std::size_t>(size()) : 1;
  }
  /// Returns "all-reduce 3 of grads": the running collective, or "collective 3 of grads" if ranks call different ones.
  std::string call_text(bool is_agreed = true) const;
  int rank() const { return group_->info().rank; }
  int size() const { return group_->info().size; }

  /// Keeps the names of one process's Reducers apart in each group.
  class NameInUse {
   public:
    NameInUse(const Engine& group, const std::string& name);
    ~NameInUse();
    NameInUse(const NameInUse&) = delete;
    NameInUse& operator=(const NameInUse&) = delete;

   private:
    std::pair<const Engine*, std::string> used_;
  };

  /// The caller's. Statuses are posted in it, where ranks in other operations see them, and aborts end it.
  std::shared_ptr<Engine> parent_;
  Options options_;
  NameInUse name_;
  std::shared_ptr<Engine> group_;                    ///< has this Reducer's channels
  std::function<void()> caller_poll_;                ///< poll_caller(), or empty as options_.poll is
  const std::function<void()>* poll_now_ = nullptr;  ///< for waits of the running collective
  std::exception_ptr interruption_;
  std::vector<int> all_ranks_;
  std::vector<int> host_;                            ///< this rank and those that share memory with it, ascending
  std::vector<std::shared_ptr<Channel>> to_all_;     ///< by sender
  std::vector<std::shared_ptr<Channel>> to_host_;    ///< by sender's index in host_; empty where host_ is all ranks
  std::vector<std::shared_ptr<Channel>> sending_;    ///< by receiver; null for ranks of this host
  std::vector<std::shared_ptr<Channel>> receiving_;  ///< by sender; null for ranks of this host
  Collective collective_{};                          ///< that is running
  std::int64_t number_ = 0;                          ///< of the running collective
  std::uint64_t exchange_ = 0;                       ///< MessageHeader::exchange; the same on all ranks

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  std::exception_ptr broken_;
  std::exception_ptr disagreement_;  ///< the latest
  std::uint64_t agreed_from_ = 0;    ///< collectives before this flush throw disagreement_
  std::thread thread_;
};

}  // namespace levada

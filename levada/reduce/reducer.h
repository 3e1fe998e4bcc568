// The collectives of one group, executed one after another in the background.
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

/// One result for each input, all in one block of memory. The launcher of the collective knows their types and shapes.
struct Results {
  std::vector<std::byte*> data;
  std::shared_ptr<const void> owner = {};
};

/// This rank's endpoint for the collectives of its group. They run in launch order, which must be the same on all
/// ranks, on a dedicated thread. Here, a host is a set of ranks that share memory. A sum adds the ranks in order; if
/// the group has several hosts, it adds the ranks of each host in order, and then the hosts' sums in the order of their
/// lowest ranks. Its bits depend on nothing else. One thread at a time. After any exception except InvalidArgument, all
/// later collectives throw the same one. An exception on only one rank, such as Timeout, also ends the group
/// (Engine::abort()), since the other ranks would wait for that one.
class Reducer {
 public:
  struct Options {
    /// Matches the Reducers of all ranks, in whatever order each rank constructs the Reducers of a group.
    std::string name = {};
    int window = 1;      ///< maximum number of a rank's messages that others have not received yet
    Duration timeout{};  ///< limit for each wait for another rank or for memory
    /// As WaitFor::poll: runs on the thread of a call of this class that waits. Its exception aborts the group and ends
    /// the call.
    std::function<void()> poll = {};
    int job_rank = -1;  ///< this rank's number in the whole job, for errors; -1: unknown
  };
  /// Collective: opens channels in a subgroup of all ranks. Throws InvalidArgument if this rank already has a Reducer
  /// with the same name in the group.
  Reducer(std::shared_ptr<Engine> group, Options options);
  /// Cancels pending collectives.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Returns memory for inputs; waits until some is available. `what` names the operation in the Timeout. Throws as
  /// Engine::try_allocate() does.
  Block allocate_inputs(std::size_t bytes, std::string_view what);

  /// Starts a collective. `messages`: at least one; their inputs are laid out in order, as in BucketLayout: one piece
  /// for each rank, or a single one for an all-gather. The results are: for a reduce-scatter, the sum of this rank's
  /// piece; for an all-reduce, the sums of all pieces, concatenated; for an all-gather, all ranks' inputs,
  /// concatenated. The future throws InvalidArgument, naming ranks, input and shapes, if ranks disagree. `awaited`: the
  /// caller has nothing else to do; the collective then runs inside this call unless another one is running.
  std::shared_future<Results> launch(CollectiveSpec spec, std::vector<BucketMessage> messages, bool awaited = false);

  /// Waits until a collective launched here has ended. Throws exceptions from `poll`.
  void wait_for(const std::shared_future<Results>& results);

  /// Returns whether the group has no other owner, so that nothing more can be launched in it.
  bool is_abandoned() const { return parent_.use_count() == 1; }

  /// Waits until all collectives have ended, and releases unused memory to the system.
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
  /// Pending messages from one rank: their channel, the layout of their inputs, and the messages received so far.
  struct Incoming {
    std::shared_ptr<Channel> channel;
    const BucketLayout* layout = nullptr;
    PeerMessages* peer = nullptr;
  };
  using Peers = std::vector<PeerMessages>;

  /// Calls options_.poll() on a caller's thread. If it throws, keeps the exception for interruptible() and throws
  /// EngineError.
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

  /// Sends this rank's messages to all ranks and receives theirs. Throws InvalidArgument if layouts differ.
  Peers exchange(const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Writes the messages' headers.
  std::deque<Outgoing> outgoing(Channel& channel, const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Returns a message to all ranks that has no inputs.
  std::deque<Outgoing> announcement(const BucketLayout& layout, ByteView body = {});
  /// Returns the pending messages of those ranks in `from` whose messages to all ranks are not complete in `peers`.
  std::vector<Incoming> missing_from(const std::vector<int>& from, const BucketLayout& layout, Peers& peers);
  /// Sends in order, and receives until nothing is missing and, if `until_sent`, everything has been sent.
  void transfer(std::deque<Outgoing>& to_send, std::vector<Incoming> missing, bool until_sent = true);
  /// Receives available messages. Returns whether there were any. Throws as throw_left() does if the rank has left.
  bool receive(const Incoming& from);
  /// If layouts differ, all ranks exchange their specs and throw InvalidArgument. A rank's later collectives throw as
  /// well until the furthest flush that any rank has reached, and those that follow the next flush's last bucket throw
  /// until that flush ends. All ranks therefore continue together after it.
  void check_agreement(const BucketLayout& layout, Peers& peers);
  /// Throws CorruptMessage if inputs are missing.
  static void check_inputs(const BucketLayout& layout, const PeerMessages& peer);

  Results reduce(const BucketLayout& layout, const Peers& peers);
  Results all_gather_sums(CollectiveSpec spec, const Results& sums);
  Results concatenate(const BucketLayout& layout, const Peers& peers);
  /// Combines exchange() and reduce() if there are several hosts.
  Results reduce_between_hosts(const BucketLayout& layout, std::vector<BucketMessage> messages);
  /// Adds up the inputs of this host's ranks: for this rank into `own`, and for the ranks that it serves into the
  /// messages that it returns, which are addressed to them. All are laid out as in `sums_layout`.
  std::deque<Outgoing> reduce_in_host(const BucketLayout& layout, std::vector<BucketMessage> messages,
                                      const BucketLayout& sums_layout, std::byte* own);
  /// Adds up the sums of all hosts. `hosts`: each host's sums for this rank.
  void add_up_hosts(const BucketLayout& layout, const std::vector<Incoming>& hosts, const Results& to) const;
  /// Returns the ranks of each host, by its lowest rank.
  std::map<int, std::vector<int>> hosts_of(const Peers& announced) const;
  /// Returns the ranks of other hosts for which this rank computes its host's sums.
  std::vector<int> served_ranks() const;
  /// Adds up piece `number` of each input of `peers`, and divides the sums. `to`: laid out as in `sums_layout`.
  static void add_up(const BucketLayout& layout, const Peers& peers, int number, const BucketLayout& sums_layout,
                     std::byte* to, std::size_t divisor = 1);

  /// Returns memory for results in `layout`: from the engine if available now, else from the heap.
  Results allocate_results(const BucketLayout& layout);
  /// Waits for memory. Throws EngineError if the engine can never allocate that much.
  Block allocate(std::size_t bytes);
  std::size_t divisor_of(const CollectiveSpec& spec) const {
    return spec.op == ReduceOp::average ? static_cast<std::size_t>(size()) : 1;
  }
  /// Returns the name of the running collective: "all-reduce 3 of grads", or "collective 3 of grads" if ranks disagree.
  std::string call_text(bool is_agreed = true) const;
  int rank() const { return group_->info().rank; }
  int size() const { return group_->info().size; }

  /// Ensures that the Reducers of one process have different names in each group.
  class NameInUse {
   public:
    NameInUse(const Engine& group, const std::string& name);
    ~NameInUse();
    NameInUse(const NameInUse&) = delete;
    NameInUse& operator=(const NameInUse&) = delete;

   private:
    std::pair<const Engine*, std::string> used_;
  };

  /// The caller's group. Statuses are posted in it, for ranks in other operations to see, and aborts end it.
  std::shared_ptr<Engine> parent_;
  Options options_;
  NameInUse name_;
  std::shared_ptr<Engine> group_;                    ///< subgroup with this Reducer's channels
  std::function<void()> caller_poll_;                ///< calls poll_caller(); empty if options_.poll is
  const std::function<void()>* poll_now_ = nullptr;  ///< callback for waits of the running collective
  std::exception_ptr interruption_;
  std::vector<int> all_ranks_;
  std::vector<int> host_;                            ///< this rank and those that share memory with it, ascending
  std::vector<std::shared_ptr<Channel>> to_all_;     ///< by sender
  std::vector<std::shared_ptr<Channel>> to_host_;    ///< by sender's index in host_; empty if host_ is all ranks
  std::vector<std::shared_ptr<Channel>> sending_;    ///< by receiver; null for ranks of this host
  std::vector<std::shared_ptr<Channel>> receiving_;  ///< by sender; null for ranks of this host
  Collective collective_{};                          ///< the running one
  std::int64_t number_ = 0;                          ///< number of the running collective
  std::uint64_t exchange_ = 0;                       ///< MessageHeader::exchange; the same on all ranks

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  std::exception_ptr broken_;
  std::exception_ptr disagreement_;            ///< the latest disagreement
  std::uint64_t agreed_from_ = 0;              ///< collectives before this flush throw disagreement_
  std::optional<std::uint64_t> disagreed_in_;  ///< the furthest flush of a disagreement; the same on all ranks
  std::thread thread_;
};

}  // namespace levada

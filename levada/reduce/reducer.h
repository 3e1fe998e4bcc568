// Collectives of one group, carried out one after the other in the background.
#pragma once

#include <atomic>
#include <condition_variable>
#include <deque>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <thread>
#include <vector>

#include "levada/engine/engine.h"
#include "levada/reduce/contribution.h"

namespace levada {

/// Where a result lies; its type and shape are known to who has launched the collective.
struct Result {
  std::byte* data = nullptr;
  std::shared_ptr<const void> owner = {};
  std::size_t bytes = 0;
};

/// What a collective comes to. Any thread may ask; the results live as long as they are held.
class Outcome {
 public:
  /// Whether it has ended, well or badly.
  bool done() const;
  /// Waits for the end; whether it was reached by the deadline.
  bool wait(Deadline deadline) const;
  /// One an input. Waits for the end; throws what went wrong.
  const std::vector<Result>& results() const;

 private:
  friend class Reducer;
  void end(std::vector<Result> results, std::exception_ptr error);

  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  bool done_ = false;
  std::vector<Result> results_;
  std::exception_ptr error_;
};

/// A rank's end of its group's collectives, which run on a thread of its own in the order in which they are launched:
/// the same on all ranks. Ranks that share memory are called a host here. Sums are made in the order of ranks; where
/// the group has several hosts, first those of each host's ranks, in the order of ranks, and then the sum of these, in
/// the order of the hosts' lowest ranks. Their bits depend on nothing else. One thread at a time calls. After an error
/// but InvalidArgument all later collectives fail in the same way.
class Reducer {
 public:
  /// Collective: opens the group's channels. `window`: messages of a rank that others have not received yet. `timeout`:
  /// of one wait for another rank, and of one for memory. `poll`: as WaitFor::poll, on the thread of a call of this
  /// class that waits; what it throws aborts the group and ends the call.
  Reducer(std::shared_ptr<Engine> group, int window, Duration timeout, std::function<void()> poll = {});
  /// Gives up what has not ended.
  ~Reducer();
  Reducer(const Reducer&) = delete;
  Reducer& operator=(const Reducer&) = delete;

  /// Memory for `inputs` inputs of `bytes` in all, pieces of all ranks together. Waits for it; throws Timeout, which
  /// says who holds what there is, and what Engine::try_allocate() does.
  Contribution contribution(CollectiveSpec spec, std::size_t bytes, std::size_t inputs);

  /// Carries out what the contributions' specs say, with the inputs of all of them, in order, as one: all have the
  /// same spec but for their pieces; how inputs are divided among contributions may differ between ranks. There is
  /// at least one. The results: of a reduce-scatter, the sum of this rank's piece; of an all-reduce, those of all
  /// pieces side by side along a new first dimension; of an all-gather, whose inputs are one piece each, those of all
  /// ranks in the same way. The Outcome throws InvalidArgument, naming ranks, input and shapes, where ranks disagree.
  /// `awaited`: the caller has nothing else to do: if nothing is under way, it happens inside this call.
  std::shared_ptr<const Outcome> launch(std::vector<Contribution> contributions, bool awaited = false);

  /// Waits until a collective that was launched here has ended, well or badly. Throws what `poll` threw in it.
  void wait_for(const Outcome& outcome);

  /// Waits until all that was launched has ended, and gives the memory that nobody holds any more back to the system.
  void trim();

 private:
  struct Task {
    std::vector<Contribution> contributions;
    std::shared_ptr<Outcome> outcome;
  };
  /// What one rank has contributed to the collective under way.
  struct Given {
    std::vector<Lease> leases;
    std::vector<ContributionView> messages;
    struct Place {
      std::uint32_t position = 0;  ///< among all inputs
      std::uint32_t message = 0;
      std::uint32_t input = 0;  ///< of that message
    };
    std::vector<Place> where;  ///< by position, once it is complete
    bool complete = false;

    /// Throws CorruptMessage where the messages differ in what they are for, and where inputs lack a position.
    void add(Lease lease, ContributionView view);
    /// With the pieces of all messages.
    CollectiveSpec spec() const;
    bool says_the_same_as(const Given& other) const;
    std::size_t piece_bytes(std::size_t input) const {
      return messages[where[input].message].inputs()->bytes[where[input].input];
    }
    const std::byte* piece(std::size_t input, int number) const {
      return messages[where[input].message].piece(where[input].input, number);
    }
  };
  struct Outgoing {
    Channel* channel = nullptr;
    Contribution::Message message;
  };
  /// What is to be received from one rank.
  struct Awaited {
    std::shared_ptr<Channel> channel;
    InputsReader* reader = nullptr;
    Given* given = nullptr;
  };
  /// One host's sums for this rank.
  struct HostSums {
    DType dtype;
    const Given* received = nullptr;  ///< null: this host's
  };

  /// poll_() on a caller's thread: EngineError for its exception, which is kept for interruptible() to throw.
  void poll_caller();
  template <typename Work>
  auto interruptible(Work work);
  void run() noexcept;
  /// `poll`: for the waits of the thread that calls.
  void carry_out(Task task, const std::function<void()>* poll) noexcept;
  /// The next task; empty when there is to be none any more.
  std::optional<Task> next();
  std::vector<Result> results_of(std::vector<Contribution> contributions);
  std::deque<Outgoing> on(Channel& channel, std::vector<Contribution> contributions);
  /// Sends this rank's messages to all and receives those of all ranks. Throws InvalidArgument where ranks disagree.
  std::vector<Given> exchange(Collective collective, std::vector<Contribution> contributions);
  /// What ranks `from` send to all, so far as it is not complete in `given`, which is by rank.
  std::vector<Awaited> awaited_from(const std::vector<int>& from, std::vector<Given>& given);
  /// Sends in order and receives, until all that is awaited is complete and, if `until_sent`, all has been sent.
  void transfer(Collective collective, std::deque<Outgoing>& to_send, std::vector<Awaited> awaited, bool until_sent);
  /// Receives what has arrived. Returns whether there was any. Throws as throw_left() does where the rank has left.
  bool receive(Collective collective, const Awaited& from);
  /// As reduce(exchange()), where there are several hosts.
  std::vector<Result> reduce_between_hosts(std::vector<Contribution> contributions, const CollectiveSpec& spec);
  /// All ranks, by the lowest of their hosts.
  std::map<int, std::vector<int>> hosts_of(const std::vector<Given>& announced) const;
  /// The sums of this host's inputs for those ranks of other hosts for which this rank makes them.
  std::deque<Outgoing> sums_for_others(const std::vector<Given>& inputs, const CollectiveSpec& spec);
  /// The sum of pieces `number` of an input on this host's ranks.
  void add_up_host(const std::vector<Given>& inputs, std::size_t input, int number, DType dtype, std::byte* to) const;
  std::vector<Result> add_up_hosts(const CollectiveSpec& spec, const std::vector<HostSums>& of_hosts,
                                   std::vector<Result> own);
  /// A sum of several ranks is not rounded before the hosts' sums are added up.
  static DType host_dtype(DType dtype, std::size_t ranks) { return ranks == 1 ? dtype : sum_dtype(dtype); }
  /// Throw CorruptMessage.
  static void check_has_inputs(const Given& given);
  static void check_given(const Given& given, const CollectiveSpec& spec);
  /// Throws InvalidArgument where ranks disagree.
  void check(const std::vector<Given>& given) const;
  std::vector<Result> reduce(const std::vector<Given>& given);
  std::vector<Result> spread(const CollectiveSpec& spec, const std::vector<Result>& sums);
  std::vector<Result> side_by_side(const std::vector<Given>& given);
  Result result(std::size_t bytes);
  Block allocate(std::size_t bytes);
  int rank() const { return group_->info().rank; }
  int size() const { return group_->info().size; }

  std::shared_ptr<Engine> group_;
  std::function<void()> poll_;                       ///< empty where there is nothing to look for
  std::function<void()> caller_poll_;                ///< poll_caller(); empty where poll_ is
  const std::function<void()>* poll_now_ = nullptr;  ///< for waits of the collective under way
  std::exception_ptr interruption_;
  Duration timeout_;
  std::vector<int> host_;                            ///< ranks that share memory with this one and itself, ascending
  std::vector<std::shared_ptr<Channel>> to_all_;     ///< by sender
  std::vector<std::shared_ptr<Channel>> to_host_;    ///< by sender's place in host_; none where that is all ranks
  std::vector<std::shared_ptr<Channel>> sending_;    ///< by receiver; null for ranks of this host
  std::vector<std::shared_ptr<Channel>> receiving_;  ///< by sender; likewise
  InputsReader of_all_, of_own_;                     ///< messages with pieces for all ranks, and for this one alone
  std::shared_ptr<Block> shared_;                    ///< by small results of the collective under way
  std::size_t shared_used_ = 0;
  std::int64_t number_ = 0;
  std::uint64_t exchange_ = 0;  ///< times that all ranks have sent to all: the same on all ranks

  std::atomic<bool> stop_ = false;
  std::mutex mutex_;
  std::condition_variable launched_;
  std::condition_variable idle_;
  std::deque<Task> tasks_;
  bool busy_ = false;
  std::exception_ptr broken_;
  std::thread thread_;
};

}  // namespace levada

// The report of `levada feed`, gathered from the ranks and shown as a table or as JSON.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "levada/base/fields.h"
#include "levada/report/balance_report.h"
#include "levada/report/style.h"

namespace levada::report {

/// One field as one rank received it.
struct FieldReport {
  std::string name;
  std::string digest;  ///< XXH3-128 over all batches in order, hexadecimal
  std::string dtype;
  std::vector<std::int64_t> shape;  ///< shape in one batch
  static auto fields(auto& self) { return std::tie(self.name, self.digest, self.dtype, self.shape); }
  bool operator==(const FieldReport&) const = default;
};

/// One rank's part of the report. Rank 0 gathers those of all ranks; see base/fields.h.
struct RankReport {
  int rank = 0;
  std::vector<std::pair<std::string, int>> coordinates;  ///< by axis
  std::int64_t batches = 0;
  std::int64_t samples = 0;  ///< without padding
  std::uint64_t bytes = 0;
  std::int64_t copied_batches = 0;
  double wait_seconds = 0;
  double seconds = 0;         ///< from before the first batch to after the last one, without digest_seconds
  double digest_seconds = 0;  ///< time spent on digests
  bool is_reader = false;
  std::uint64_t bytes_sent = 0;  ///< this and the next three: counters of a reader
  std::uint64_t bytes_read = 0;
  std::uint64_t bytes_consumed = 0;
  std::uint64_t prepare_bytes = 0;
  std::vector<FieldReport> field_reports;
  static auto fields(auto& self) {
    return std::tie(self.rank, self.coordinates, self.batches, self.samples, self.bytes, self.copied_batches,
                    self.wait_seconds, self.seconds, self.digest_seconds, self.is_reader, self.bytes_sent,
                    self.bytes_read, self.bytes_consumed, self.prepare_bytes, self.field_reports);
  }
  bool operator==(const RankReport&) const = default;
};

/// Returns for example "dp0 tp1", or "-" without axes.
std::string describe_coordinates(const RankReport& rank);

/// Ranks that receive the same part of a field.
struct PeerGroup {
  std::string field;
  std::vector<int> ranks;
};

/// Returns a sentence about the first group whose digests differ; empty if all are equal.
std::string find_difference(const std::vector<RankReport>& ranks, const std::vector<PeerGroup>& peers);

/// The contribution of one source to all batches.
struct SourceReport {
  std::string name;
  std::int64_t samples = 0;
  std::int64_t tokens = 0;  ///< without padding
  double share = 0;         ///< share of the quantity to which the mix's weights apply
};

/// The origin of a report.
struct RunFacts {
  std::string version;
  std::string host;                   ///< rank 0's host
  std::string began;                  ///< for example "2026-11-29T01:40:00Z"
  std::vector<std::string> command;   ///< arguments, without secrets
  std::string tokenizer;              ///< as the user named it; empty for none
  std::optional<std::uint64_t> seed;  ///< seed of the shuffle; empty if the data was read in order
};

struct FeedReport {
  std::string mesh;           ///< "dp=2,tp=2"
  std::string engine;         ///< "shm"
  std::string engine_choice;  ///< with the reason: "shm: all 4 ranks are on one host"
  std::string readers;        ///< "one"
  std::int64_t dp = 1;        ///< ranks along the data axis
  std::int64_t batch = 1;
  std::int64_t sequence = 1;
  std::int64_t steps = 0;
  std::int64_t samples = 0;                      ///< counted once per data-parallel rank, without padding
  std::string end_cause;                         ///< FeedEnd::Cause in words
  std::string state_file;                        ///< saved state; empty for none
  std::int64_t files = 0;                        ///< opened files
  std::int64_t documents = 0;                    ///< in the part of the split that was read
  std::int64_t stored_documents = 0;             ///< in all parts
  std::map<std::string, std::int64_t> left_out;  ///< files in folders that are not data, by file name extension
  std::int64_t skipped_lines = 0;
  std::vector<std::string> skipped_places = {};  ///< the first places, such as "a.jsonl:17"
  std::uint64_t prepare_bytes = 0;
  double prepare_seconds = 0;        ///< time to open the data and tokenize texts
  std::uint64_t bytes_consumed = 0;  ///< stored data that the batches consist of, counted once
  std::optional<BalanceReport> balance;
  std::vector<SourceReport> sources;
  std::vector<PeerGroup> peers;  ///< groups of at least two ranks
  std::vector<RankReport> ranks;
  RunFacts run;

  std::int64_t tokens() const { return balance ? balance->series.total().tokens : samples * sequence; }
  std::uint64_t bytes_read() const;
  std::uint64_t bytes_delivered() const;
  std::uint64_t bytes_sent() const;
  double read_amplification() const;
  /// Returns the share of padding tokens, between packed documents and after them. They are included in tokens().
  double padding_share() const;
  /// Returns the time of the slowest rank.
  double seconds() const;
  double tokens_per_second() const;
  /// Returns the waiting time of all ranks relative to their total time.
  double waited_share() const;

  /// Returns one JSON object on one line.
  std::string to_json() const;
  /// Returns the table and a summary of it in words.
  std::string to_text(const Style& style = {}) const;
};

}  // namespace levada::report

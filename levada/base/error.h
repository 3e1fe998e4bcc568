// The exceptions that Levada throws, and the codes by which ranks send them to each other.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>
#include <string_view>

namespace levada {

/// The kind of an error. Sent on the wire, because a reader's error is thrown again on every rank.
enum class ErrorKind : std::uint8_t {
  invalid_argument = 1,  ///< the caller passed something that cannot work
  timeout = 2,           ///< a deadline passed; the message names the waiting rank and the rank that it waited for
  peer_lost = 3,         ///< another rank ended without closing
  corrupt_message = 4,   ///< untrusted bytes violated the format
  unsupported = 5,       ///< this build, engine or machine cannot do it
  source = 6,            ///< reading the data failed
  engine = 7,            ///< transferring the data failed, or a rank aborted
};

/// Returns the name of the class that throw_error() throws for `kind`: "InvalidArgument", "Timeout", ...
std::string_view error_name(ErrorKind kind);

/// The base of all Levada exceptions. what() is one sentence that names rank, step and field, as far as known, and what
/// to do. It is printable_lines(message), so that it is safe to show on a terminal, whatever the message quotes.
class Error : public std::runtime_error {
 public:
  Error(ErrorKind kind, const std::string& message);
  ErrorKind kind() const noexcept { return kind_; }
  std::string_view name() const noexcept { return error_name(kind_); }

 private:
  ErrorKind kind_;
};

class InvalidArgument : public Error {
 public:
  explicit InvalidArgument(const std::string& message) : Error(ErrorKind::invalid_argument, message) {}
};

class Timeout : public Error {
 public:
  explicit Timeout(const std::string& message) : Error(ErrorKind::timeout, message) {}
};

class PeerLost : public Error {
 public:
  /// `rank` is the lost rank, in the numbering of the engine that throws; -1 if unknown.
  PeerLost(int rank, const std::string& message) : Error(ErrorKind::peer_lost, message), rank_(rank) {}
  int rank() const noexcept { return rank_; }

 private:
  int rank_;
};

class CorruptMessage : public Error {
 public:
  /// `offset`: position in the bytes at which the format broke.
  CorruptMessage(std::size_t offset, const std::string& message)
      : Error(ErrorKind::corrupt_message, message), offset_(offset) {}
  std::size_t offset() const noexcept { return offset_; }

 private:
  std::size_t offset_;
};

class Unsupported : public Error {
 public:
  explicit Unsupported(const std::string& message) : Error(ErrorKind::unsupported, message) {}
};

class SourceError : public Error {
 public:
  explicit SourceError(const std::string& message) : Error(ErrorKind::source, message) {}
};

class EngineError : public Error {
 public:
  explicit EngineError(const std::string& message) : Error(ErrorKind::engine, message) {}
};

/// Throws the class for `kind`, to raise one rank's error on another rank. `lost` is PeerLost::rank().
[[noreturn]] void throw_error(ErrorKind kind, const std::string& message, int lost = -1);

}  // namespace levada

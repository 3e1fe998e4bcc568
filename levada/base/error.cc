#include "levada/base/error.h"

#include "levada/base/text.h"

namespace levada {

Error::Error(ErrorKind kind, const std::string& message) : std::runtime_error(printable_lines(message)), kind_(kind) {}

std::string_view error_name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::invalid_argument: return "InvalidArgument";
    case ErrorKind::timeout: return "Timeout";
    case ErrorKind::peer_lost: return "PeerLost";
    case ErrorKind::corrupt_message: return "CorruptMessage";
    case ErrorKind::unsupported: return "Unsupported";
    case ErrorKind::source: return "SourceError";
    case ErrorKind::engine: return "EngineError";
  }
  return "Error";
}

void throw_error(ErrorKind kind, const std::string& message, int lost) {
  switch (kind) {
    case ErrorKind::invalid_argument: throw InvalidArgument(message);
    case ErrorKind::timeout: throw Timeout(message);
    case ErrorKind::peer_lost: throw PeerLost(lost, message);
    case ErrorKind::corrupt_message: throw CorruptMessage(0, message);
    case ErrorKind::unsupported: throw Unsupported(message);
    case ErrorKind::source: throw SourceError(message);
    case ErrorKind::engine: break;
  }
  throw EngineError(message);
}

}  // namespace levada

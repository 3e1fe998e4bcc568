// Compresses bytes, for tests.
#pragma once

#include <zlib.h>
#include <zstd.h>

#include <stdexcept>
#include <string>
#include <string_view>

namespace levada {

/// Returns one member of a .gz.
inline std::string gzip(std::string_view content) {
  z_stream state{};
  if (::deflateInit2(&state, Z_DEFAULT_COMPRESSION, Z_DEFLATED, 16 + MAX_WBITS, 8, Z_DEFAULT_STRATEGY) != Z_OK) {
    throw std::runtime_error("cannot compress");
  }
  std::string out(::deflateBound(&state, static_cast<uLong>(content.size())), '\0');
  state.next_in = reinterpret_cast<Bytef*>(const_cast<char*>(content.data()));
  state.avail_in = static_cast<uInt>(content.size());
  state.next_out = reinterpret_cast<Bytef*>(out.data());
  state.avail_out = static_cast<uInt>(out.size());
  const int status = ::deflate(&state, Z_FINISH);
  out.resize(state.total_out);
  ::deflateEnd(&state);
  if (status != Z_STREAM_END) throw std::runtime_error("cannot compress");
  return out;
}

/// Returns one frame of a .zst, with a checksum, as the zstd command writes it.
inline std::string zstd(std::string_view content) {
  ZSTD_CCtx* state = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(state, ZSTD_c_checksumFlag, 1);
  std::string out(::ZSTD_compressBound(content.size()), '\0');
  out.resize(::ZSTD_compress2(state, out.data(), out.size(), content.data(), content.size()));
  ::ZSTD_freeCCtx(state);
  return out;
}

/// The same as a stream of unknown length, for which the reader has to keep 2**`window_log` bytes.
inline std::string zstd_stream(std::string_view content, int window_log) {
  ZSTD_CCtx* state = ::ZSTD_createCCtx();
  ::ZSTD_CCtx_setParameter(state, ZSTD_c_windowLog, window_log);
  std::string bytes(::ZSTD_compressBound(content.size()), '\0');
  ZSTD_outBuffer out{bytes.data(), bytes.size(), 0};
  ZSTD_inBuffer in{content.data(), content.size(), 0};
  ::ZSTD_compressStream2(state, &out, &in, ZSTD_e_continue);
  while (::ZSTD_compressStream2(state, &out, &in, ZSTD_e_end) > 0) continue;
  ::ZSTD_freeCCtx(state);
  bytes.resize(out.pos);
  return bytes;
}

}  // namespace levada

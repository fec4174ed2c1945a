# Source me. Messages, and progress for commands that take long; every failure says what to do next.
# Works with the bash 3.2 of macOS.

say() { printf '%s\n' "$*"; }

die() { # what went wrong, what to do next
  printf 'error: %s\n' "$1" >&2
  [ $# -lt 2 ] || printf '  next: %s\n' "$2" >&2
  exit 1
}

# progress "What is done" LOG COMMAND...: runs the command into LOG and counts the seconds; on a terminal in one
# line, elsewhere a line every 20 s. Fails with the end of LOG.
progress() {
  local title=$1 log=$2 start=$SECONDS waited=0 status=0
  shift 2
  "$@" >"$log" 2>&1 &
  local pid=$!
  # A background command of a script does not hear Ctrl-C by itself.
  trap 'kill "$pid" 2>/dev/null; exit 130' INT TERM
  [ -t 1 ] || say "$title ..."
  while kill -0 "$pid" 2>/dev/null; do
    if [ -t 1 ]; then
      printf '\r%s ... %d s' "$title" $((SECONDS - start))
    elif [ $((SECONDS - start)) -ge $((waited + 20)) ]; then
      waited=$((SECONDS - start))
      say "  still at it, $waited s"
    fi
    sleep 0.3
  done
  wait "$pid" || status=$?
  trap - INT TERM
  if [ "$status" -eq 0 ]; then
    if [ -t 1 ]; then printf '\r%s ... done in %d s\n' "$title" $((SECONDS - start)); fi
    return 0
  fi
  printf '\n%s: failed (exit %d). The end of %s:\n' "$title" "$status" "$log" >&2
  tail -n 15 "$log" >&2
  return "$status"
}

# fingerprint PATH...: one number for the contents of the files, and of the files in the folders; pages do not count.
fingerprint() {
  find "$@" -type f ! -path '*/__pycache__/*' ! -name '*.md' -print0 | LC_ALL=C sort -z | xargs -0 cksum | cksum | tr ' ' '-'
}

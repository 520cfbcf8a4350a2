#!/bin/sh
# Refuses a change that does more than add Records and artifacts: sh only_adds.sh BASE HEAD, both as git names them.
set -eu
base=$(git merge-base "$1" "$2")
code=0

refuse() {
    echo "refused: $1" >&2
    code=1
}

# one line for each file that changed: its status, a tab, its path
changes=$(mktemp)
trap 'rm -f "$changes"' EXIT
git diff --no-renames --name-status "$base" "$2" > "$changes"
tab=$(printf '\t')
while IFS="$tab" read -r status path; do
    case $path in
        results/records/*)
            if [ "$status" = D ]; then
                refuse "$path is removed; Records stay"
            elif git diff --numstat "$base" "$2" -- "$path" | grep -qv "^[0-9]*${tab}0${tab}"; then
                refuse "$path has changed or removed lines; a Record is never edited, new ones are added at the end"
            fi ;;
        results/artifacts/*)
            [ "$status" = A ] || refuse "$path is changed or removed; an artifact is named by its content" ;;
        *)
            refuse "$path is neither in results/records nor in results/artifacts; send other changes by themselves" ;;
    esac
done < "$changes"
[ "$code" = 0 ] && echo "only Records and artifacts are added"
exit "$code"

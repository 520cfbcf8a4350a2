#!/bin/sh
# Refuses a change that does more than add Records and artifacts: sh only_adds.sh BASE HEAD, both as git names them.
set -eu
base=$(git merge-base "$1" "$2")
code=0
most_bytes=33554432

refuse() {
    echo "refused: $1" >&2
    code=1
}

# one line for each file that changed: mode before, mode after, hashes, status, a tab, its path
changes=$(mktemp)
before=$(mktemp)
trap 'rm -f "$changes" "$before"' EXIT
git -c core.quotePath=true diff --raw --no-renames --no-abbrev "$base" "$2" > "$changes"
tab=$(printf '\t')
while IFS="$tab" read -r fields path; do
    status=${fields##* }
    mode=${fields#* }
    mode=${mode%% *}
    name=${path##*/}
    case $path in
        results/records/*.jsonl | results/records/arrivals.txt) folder=results/records ;;
        results/artifacts/*.json | results/artifacts/*.npz | results/artifacts/*.py) folder=results/artifacts ;;
        *)
            refuse "$path is neither a file of Records nor an artifact; send other changes by themselves"
            continue ;;
    esac
    given='^[A-Za-z0-9][A-Za-z0-9._-]{0,120}\.(jsonl|txt)$'
    [ "$folder" = results/artifacts ] && given='^[0-9a-f]{24}(\.[a-z0-9]{1,12}){1,2}$'
    if [ "$path" != "$folder/$name" ] || ! echo "$name" | grep -Eq "$given"; then
        refuse "$path lies in a folder of its own, or has another name than attnbench gives"
    elif [ "$status" = D ]; then
        refuse "$path is removed; what was sent stays"
    elif [ "$mode" != 100644 ]; then
        refuse "$path is no plain file: its mode is $mode, expected 100644"
    elif [ "$folder" = results/artifacts ] && [ "$status" != A ]; then
        refuse "$path is changed or removed; an artifact is named by its content"
    elif [ "$folder" = results/artifacts ] && [ "$(git cat-file -s "$2:$path")" -gt "$most_bytes" ]; then
        refuse "$path is longer than $most_bytes bytes"
    elif [ "$folder" = results/records ] && [ -n "$(git show "$2:$path" | tail -c 1)" ]; then
        refuse "$path lacks the line feed of its last line, so that the next Record would change that line; add it"
    elif [ "$status" = M ]; then
        # whole lines are added at the end, and what was there stays in front of them to the last byte
        git show "$base:$path" > "$before"
        size=$(wc -c < "$before")
        git show "$2:$path" | head -c "$size" | cmp -s - "$before" ||
            refuse "$path has changed, removed or inserted lines; a Record is never edited, new ones follow the last"
    fi
done < "$changes"
[ "$code" = 0 ] && echo "only Records and artifacts are added"
exit "$code"

#!/usr/bin/env bash
# dep5.sh VENDOR: prints the stanzas of debian/copyright for the crates in that directory, by
# license. MIT is chosen where a crate offers it.

# shellcheck source=scripts/lib.sh
. "$(dirname "${BASH_SOURCE[0]}")/lib.sh"

vendor=${1:?the directory of the crates}
declare -A files copyright texts
# For paragraphs of DEP-5, whose lines start with a blank.
fold_text() { sed -E 's/\r$//; s/[[:space:]]+$//; s/^$/./; s/^/ /' "$1"; }

for crate in "$vendor"/*; do
    name=${crate##*/}
    license=$(sed -nE '/^\[package\]/,/^\[/s/^license = "(.*)"$/\1/p' "$crate/Cargo.toml" |
        sed -E '/ AND /!{ s/^.*\bMIT\b.*$/MIT/; }; s/\([^()]*\bMIT\b[^()]*\)/MIT/; s/ AND / and /')
    [ -n "$license" ] || die "$name does not say its license"
    files[$license]+=" vendor/$name/*"$'\n'
    authors=$(authors_of "$crate" || true)
    copyright[$license]+=" $name: ${authors:-its authors}"$'\n'
    for each in ${license// and / }; do
        text=
        case $each in
        # A text without a holder's name.
        MIT) text=$vendor/serde/LICENSE-MIT ;;
        Apache-2.0) text=/usr/share/common-licenses/Apache-2.0 ;;
        *)
            # LICENSE-UNICODE, or the only one of a crate with one license.
            text=$(find "$crate" -maxdepth 1 -iname 'licen[cs]e*' | sort)
            text=$(grep -i "${each%%-*}" <<<"$text" || { [[ $license = *' and '* ]] || head -n 1 <<<"$text"; })
            ;;
        esac
        [ -z "$text" ] || [ -n "${texts[$each]:-}" ] || texts[$each]=$text
    done
done

for license in "${!files[@]}"; do
    printf '\nFiles:\n%sCopyright:\n%sLicense: %s\n' "${files[$license]}" "${copyright[$license]}" "$license"
done
for license in $(printf '%s\n' "${!files[@]}" | sed 's/ and /\n/g' | sort -u); do
    printf '\nLicense: %s\n' "$license"
    if [ "$license" = Apache-2.0 ]; then
        echo " On Debian systems, the text is in ${texts[$license]}."
    else
        [ -n "${texts[$license]:-}" ] || die "no crate has the text of $license"
        fold_text "${texts[$license]}"
    fi
done

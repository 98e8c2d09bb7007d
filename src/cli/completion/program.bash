
# Proposes words, and files (-A file) or folders (-A directory): WORD WORDS [-A ACTION...].
_lockstep_propose()
{
    [ $# = 2 ] || compopt -o filenames 2>/dev/null
    mapfile -t COMPREPLY < <(compgen "${@:3}" -W "$2" -- "$1")
}

# Sets what can follow, from the rows of one command.  A line of the table is MODELS|NAMES|KIND|WORDS;
# a line @COMMANDS precedes the rows of these commands.
_lockstep_look()
{
    local command=$1 prev=$2 model=$3 section models names kind words
    while IFS='|' read -r models names kind words; do
        if [[ $models == @* ]]; then
            section=" ${models#@} "
            continue
        fi
        [[ $section == *" $command "* ]] || continue
        if [[ $prev == -* && " $names " == *" $prev "* && $kind != flag ]]; then
            value=$kind choices=$words
        fi
        [[ -z $models || -z $model || " $models " == *" $model "* ]] || continue
        if [[ $names == -* ]]; then
            options+=" $names"
            [[ $kind != flag ]] || flags+=" $words" # the contrary of a flag
        elif [[ $kind != model* || -z $model ]]; then
            places+=" $words"
            case $kind in
                model-or-run | files) actions=(-A file) ;;
                program) actions=(-A command -A file) ;;
            esac
        fi
    done <<<"$_lockstep_table"
}

# Bash divides words at = and :, so --log=FILE is three words, and text:FILE, too.
_lockstep()
{
    local cur=${COMP_WORDS[COMP_CWORD]} prev=${COMP_WORDS[COMP_CWORD - 1]} command=${COMP_WORDS[1]}
    local model= word equals= value= choices= options=--help flags= places=
    local -a actions=()
    COMPREPLY=()
    if [ "$COMP_CWORD" = 1 ]; then
        _lockstep_propose "$cur" "$_lockstep_commands --help --version"
        return
    fi
    if [ "$cur" = : ] || [ "$prev" = : ]; then
        _lockstep_propose "${cur#:}" '' -A file
        return
    fi
    if [ "$cur" = = ]; then
        cur= equals=1
    elif [ "$prev" = = ]; then
        prev=${COMP_WORDS[COMP_CWORD - 2]} equals=1
    fi
    if [ "$COMP_CWORD" -gt 2 ] &&
        [[ " $_lockstep_nested " == *" $command-${COMP_WORDS[2]} "* ]]; then
        command+=-${COMP_WORDS[2]}
    fi
    for word in "${COMP_WORDS[@]:2:COMP_CWORD-2}"; do
        [[ " $_lockstep_models " != *" $word "* ]] || model=$word
    done
    _lockstep_look "$command" "$prev" "$model"
    [[ $value != optional || -n $equals ]] || value=
    [[ $cur != --no-* ]] || options+=$flags
    case $value in
        words) _lockstep_propose "$cur" "$choices" ;;
        files | source) _lockstep_propose "$cur" '' -A file ;;
        folders) _lockstep_propose "$cur" '' -A directory ;;
        '')
            if [[ $cur == -* ]]; then
                _lockstep_propose "$cur" "$options"
            else
                _lockstep_propose "$cur" "$places" "${actions[@]}"
            fi
            ;;
    esac
}

complete -F _lockstep lockstep

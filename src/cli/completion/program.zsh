
_lockstep_model_or_run() {
    _alternative "models:model:($_lockstep_models)" 'runs:run:_files'
}

# A file, perhaps behind KIND: and other files.
_lockstep_source() {
    compset -P '*[:,]'
    _files
}

# The table has pairs of MODELS and what _arguments reads; @ and COMMANDS precede the rows of these
# commands.  Rows with MODELS = --no- are proposed once the word begins so.
_lockstep() {
    local curcontext=$curcontext state line command model models section row
    local -a rows
    local -A opt_args
    _arguments -C '(- *)--help[list the commands]' '(- *)--version[print the version]' \
        '1:command:->command' '*::argument:->argument' && return
    if [[ $state == command ]]; then
        _describe command _lockstep_commands
        return
    fi
    command=$words[1]
    if (( CURRENT > 2 && ${_lockstep_nested[(Ie)$command-$words[2]]} )); then
        command+=-$words[2]
        shift words
        (( CURRENT-- ))
    fi
    for model in ${=_lockstep_models} ''; do
        [[ -z $model ]] || (( ${words[2,CURRENT-1][(Ie)$model]} )) && break
    done
    for models row in "${_lockstep_table[@]}"; do
        case $models in
            @) section=" $row " ;;
            --no-) [[ $PREFIX == --no-* && $section == *" $command "* ]] && rows+=("$row") ;;
            *)
                [[ $section == *" $command "* ]] || continue
                [[ -z $models || -z $model || " $models " == *" $model "* ]] && rows+=("$row")
                ;;
        esac
    done
    _arguments -S '(- *)--help[explain the command]' "${rows[@]}"
}

# Read by `source`, or as the function _lockstep in a directory of fpath.
if [[ $funcstack[1] == _lockstep ]]; then
    _lockstep "$@"
else
    compdef _lockstep lockstep
fi


# Prints the words before the cursor, the command first; a command of two words is one word.
function __lockstep_words
    set -l words (commandline -opc)
    set -e words[1]
    if contains -- "$words[1]-$words[2]" $__lockstep_nested
        set words "$words[1]-$words[2]" $words[3..-1]
    end
    set -q words[1]
    and printf '%s\n' $words
end

# __lockstep_is COMMAND...: succeeds if the command is one of these.
function __lockstep_is
    set -l words (__lockstep_words)
    contains -- "$words[1]" $argv
end

# __lockstep_fits MODEL...: succeeds if no model has been given, or one of these.
function __lockstep_fits
    for word in (__lockstep_words)
        if contains -- $word $__lockstep_models
            contains -- $word $argv
            return
        end
    end
end

# Succeeds if the word at the cursor asks for the contrary of a flag.
function __lockstep_negates
    string match -q -- '--no-*' (commandline -ct)
end

# __lockstep_at N: succeeds if positional argument number N or a later one is due.
function __lockstep_at
    test (count (__lockstep_words)) -ge $argv[1]
end

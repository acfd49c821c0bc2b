#!/bin/sh
# Speaks Claude Code's protocol, but is hostile: one message, forty requests with one name, and it refuses every setting.
answer() {
    id=${1#*\"request_id\":\"}
    echo "{\"type\":\"control_response\",\"response\":{\"subtype\":\"$2\",\"request_id\":\"${id%%\"*}\",\"error\":\"not with me\"}}"
}
while read -r line; do
    case "$line" in
    *'"initialize"'*) answer "$line" success ;;
    *'"set_model"'*) answer "$line" error ;;
    *'"set_permission_mode"'*) ;;
    *'"type":"user"'*)
        for n in 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40; do
            echo "{\"type\":\"control_request\",\"request_id\":\"same\",\"request\":{\"subtype\":\"can_use_tool\",\"tool_name\":\"T$n\"}}"
        done
        echo '{"type":"control_request","request_id":"x","request":{"subtype":"something_new"}}'
        echo '{"type":"control_cancel_request","request_id":"never made"}'
        ;;
    esac
done

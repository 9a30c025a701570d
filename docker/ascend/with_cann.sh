#!/bin/bash
# Set up CANN's environment, then become the command. CANN's script is written for bash.
for file in "${ASCEND_TOOLKIT_HOME:-/usr/local/Ascend/ascend-toolkit/latest}/set_env.sh" \
    "${ASCEND_TOOLKIT_HOME:-/usr/local/Ascend/ascend-toolkit/latest}/../set_env.sh" \
    /usr/local/Ascend/cann/set_env.sh; do
    if [ -r "$file" ]; then
        # shellcheck disable=SC1090  # it is found at run time
        . "$file"
        break
    fi
done
exec "$@"

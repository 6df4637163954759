# Sorts standard input; backwards when the first word is "true".
if [ "$1" = true ]; then exec sort -r; fi
exec sort

from trueup_command import main

main()

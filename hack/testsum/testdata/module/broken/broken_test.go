package broken

var one int = "1"
